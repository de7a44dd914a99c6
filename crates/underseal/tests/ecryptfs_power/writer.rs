//! A thread that uses a folder as programs do, and records every state of its files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;

use crate::ecryptfs_power::expected::{Entry, Expected};

/// Files that a writer has at a time, and their size.
const FILES: usize = 10;
const LARGEST: usize = 200_000;
/// The longest write: one request.
const LONGEST: usize = 40_000;

pub(crate) struct Writer {
    folder: PathBuf,
    rng: Rng,
    /// The event after which a change must survive.
    safe: Safe,
    pub(crate) entries: BTreeMap<String, Entry>,
    count: u64,
    /// Set just before the disk is cut off, or the server killed.
    over: Arc<AtomicBool>,
}

/// The event after which a change must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Safe {
    /// fsync of the file, and of the folder for names.
    Synced,
    /// The same, but a name that was moved away may come back although the folder was fsynced: so
    /// does btrfs (Linux 6.18), without anything above it.
    SyncedButForOldNames,
    /// The acknowledgement of the change.
    Acknowledged,
}

impl Writer {
    /// A writer in an existing folder.
    pub(crate) fn new(folder: PathBuf, seed: u64, safe: Safe, over: &Arc<AtomicBool>) -> Self {
        let (entries, over) = (BTreeMap::new(), Arc::clone(over));
        Self { folder, rng: Rng::with_seed(seed), safe, entries, count: 0, over }
    }

    /// Makes changes until one fails or `over` is set. Returns how many it made.
    pub(crate) fn run(mut self) -> (Self, u64) {
        let mut done = 0;
        while !self.over.load(Ordering::SeqCst) && self.step().is_ok() {
            done += 1;
        }
        (self, done)
    }

    fn step(&mut self) -> Result<()> {
        let files: Vec<String> = self.files();
        match self.rng.u8(0..10) {
            0 => self.replace(),
            1 if files.len() > 3 => {
                let name = self.rng.choice(files).unwrap_or_default();
                self.remove(&name)
            }
            2..=3 if files.len() < FILES => self.create(),
            _ if files.is_empty() => self.create(),
            _ => {
                let name = self.rng.choice(files).unwrap_or_default();
                self.change(&name)
            }
        }
    }

    fn files(&self) -> Vec<String> {
        let files = self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::File { .. }));
        files.map(|(name, _)| name.clone()).collect()
    }

    /// A name that was never used.
    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        let long = "n".repeat(self.rng.usize(0..90));
        format!("{kind} {} {long}\u{e9}", self.count)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.usize(1..=most)];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn file(&mut self, name: &str) -> &mut Expected {
        match self.entries.get_mut(name) {
            Some(Entry::File { file, .. }) => file,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn create(&mut self) -> Result<()> {
        let name = self.name("file");
        self.entries.insert(name.clone(), Entry::File { file: Expected::new(), must_exist: false });
        let file = File::create_new(self.folder.join(&name))?;
        self.acknowledged(&name, true);
        let content = self.bytes(LONGEST);
        self.write(&name, &file, &content, 0)?;
        if self.rng.bool() { self.sync(&name, &file) } else { Ok(()) }
    }

    /// Something that a program does to a file that it has.
    fn change(&mut self, name: &str) -> Result<()> {
        let file = File::options().write(true).open(self.folder.join(name))?;
        let size = self.file(name).now().len();
        match self.rng.u8(0..8) {
            0..=2 if size < LARGEST => {
                let content = self.bytes(LONGEST);
                self.write(name, &file, &content, size)?;
            }
            3 if size < LARGEST => {
                let content = self.bytes(LONGEST);
                let gap = self.rng.usize(1..20_000);
                self.write(name, &file, &content, size + gap)?;
            }
            4 => {
                let len = self.rng.usize(0..=size + 10_000);
                let mut next = self.file(name).now().to_vec();
                next.resize(len, 0);
                self.file(name).becomes(next);
                file.set_len(len as u64)?;
                self.acknowledged(name, false);
            }
            _ => {
                let at = self.rng.usize(0..=size);
                let content = self.bytes(LONGEST);
                self.write(name, &file, &content, at)?;
            }
        }
        if self.rng.u8(0..3) == 0 { self.sync(name, &file) } else { Ok(()) }
    }

    fn write(&mut self, name: &str, file: &File, content: &[u8], at: usize) -> Result<()> {
        let expected = self.file(name);
        let mut next = expected.now().to_vec();
        if at > next.len() {
            // The file first grows with zeros.
            next.resize(at, 0);
            expected.becomes(next.clone());
        }
        expected.grows_through(at + content.len());
        next.resize(next.len().max(at + content.len()), 0);
        next[at..at + content.len()].copy_from_slice(content);
        expected.becomes(next);
        file.write_all_at(content, at as u64)?;
        self.acknowledged(name, false);
        Ok(())
    }

    /// Replaces a file by a rename over its name, as editors save.
    fn replace(&mut self) -> Result<()> {
        let target = format!("saved {}", self.rng.u8(0..3));
        let temporary = self.name("temporary");
        self.entries.insert(temporary.clone(), Entry::File { file: Expected::new(), must_exist: false });
        let file = File::create_new(self.folder.join(&temporary))?;
        let content = self.bytes(LONGEST);
        self.write(&temporary, &file, &content, 0)?;
        self.in_time(file.sync_all())?;
        self.file(&temporary).is_durable();
        self.entries
            .entry(target.clone())
            .and_modify(|entry| match entry {
                Entry::Replaced { versions, .. } => versions.push(content.clone()),
                other => panic!("{other:?}"),
            })
            .or_insert(Entry::Replaced { versions: vec![content.clone()], must_exist: false });
        let file = self.file(&temporary).clone();
        self.entries.insert(temporary.clone(), Entry::Leaving(file));
        fs::rename(self.folder.join(&temporary), self.folder.join(&target))?;
        let safe = self.safe == Safe::Acknowledged || self.rng.bool();
        if safe {
            self.sync_folder()?;
            self.entries.insert(target, Entry::Replaced { versions: vec![content], must_exist: true });
            if self.safe != Safe::SyncedButForOldNames {
                self.entries.remove(&temporary);
            }
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        let file = self.file(name).clone();
        self.entries.insert(name.into(), Entry::Leaving(file));
        fs::remove_file(self.folder.join(name))?;
        if self.safe == Safe::Acknowledged || self.rng.bool() {
            self.sync_folder()?;
            self.entries.remove(name);
        }
        Ok(())
    }

    fn sync(&mut self, name: &str, file: &File) -> Result<()> {
        let synced = if self.rng.bool() { file.sync_all() } else { file.sync_data() };
        self.in_time(synced)?;
        self.file(name).is_durable();
        let Some(Entry::File { must_exist, .. }) = self.entries.get(name) else { return Ok(()) };
        if !must_exist {
            self.sync_folder()?;
            self.must_exist(name);
        }
        Ok(())
    }

    fn sync_folder(&self) -> Result<()> {
        match self.safe {
            Safe::Synced | Safe::SyncedButForOldNames => self.in_time(File::open(&self.folder)?.sync_all()),
            Safe::Acknowledged => Ok(()),
        }
    }

    /// Ignores the result of a sync once the disk is gone: ext4 that has become read-only has
    /// nothing to sync.
    fn in_time(&self, synced: Result<()>) -> Result<()> {
        match self.over.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other("too late")),
            false => synced,
        }
    }

    fn must_exist(&mut self, name: &str) {
        if let Some(Entry::File { must_exist, .. }) = self.entries.get_mut(name) {
            *must_exist = true;
        }
    }

    /// A change was acknowledged: it is safe where that is enough.
    fn acknowledged(&mut self, name: &str, made: bool) {
        if self.safe == Safe::Acknowledged {
            self.file(name).is_durable();
            if made {
                self.must_exist(name);
            }
        }
    }
}
