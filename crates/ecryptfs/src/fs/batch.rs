//! Lookups of many names of a folder together.
//!
//! ```text
//!   this thread:  in turn, as long as no lookup has to wait
//!                                 | a few had to wait
//!                                 v
//!   several threads:  each free thread takes the next name, so the disk has many reads at a time
//! ```
//!
//! A name costs its inode and its header, each a read unless the lower filesystem has it in memory.
//! If it has, both take less time than another thread's reaction.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::Fs;
use super::cached::Patience;
use super::entries::LookupEntry;
use super::nodes::FileNode;

/// A lookup that takes this long has waited for a disk.
const WAITED: Duration = Duration::from_micros(50);
/// The number of waits before other threads help: a single wait may be chance.
const PATIENCE: usize = 4;
/// The minimum share of waits, one lookup in this many: on a busy processor threads wait, too, but
/// less often.
const OFTEN: usize = 4;
/// Fewer names are not worth the threads.
const FEW: usize = 8;
/// The number of threads, including this thread.
const THREADS: usize = 8;

impl Fs {
    /// Looks lower names up, and enters each found name for the kernel. Names without an upper
    /// form, removed meanwhile or unreadable, give `None`: a program can still ask for such a name
    /// itself.
    pub(super) fn find_all(
        &self,
        folder: &Arc<FileNode>,
        names: &[Option<&[u8]>],
    ) -> Vec<Option<LookupEntry>> {
        let mut found = Vec::with_capacity(names.len());
        let mut waited = 0;
        for (n, name) in names.iter().enumerate() {
            if waited >= PATIENCE.max(n / OFTEN) && names.len() - n >= FEW {
                found.extend(self.find_together(folder, &names[n..]));
                break;
            }
            let started = Instant::now();
            found.push(self.find_one(folder, *name));
            waited += usize::from(started.elapsed() >= WAITED);
        }
        found
    }

    fn find_together(&self, folder: &Arc<FileNode>, names: &[Option<&[u8]>]) -> Vec<Option<LookupEntry>> {
        let found: Vec<OnceLock<LookupEntry>> = names.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let look = || {
            while let Some((name, place)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| {
                let name = names.get(n)?;
                Some((*name, found.get(n)?))
            }) {
                if let Some(one) = self.find_one(folder, name) {
                    // Only this thread has taken this number.
                    let _ = place.set(one);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..THREADS.min(names.len()) {
                // Threads that cannot be started are not needed.
                let _ = thread::Builder::new().name("ecryptfs-look".into()).spawn_scoped(scope, look);
            }
            look();
        });
        found.into_iter().map(OnceLock::into_inner).collect()
    }

    fn find_one(&self, folder: &Arc<FileNode>, name: Option<&[u8]>) -> Option<LookupEntry> {
        self.find(folder, name?, Patience::Refuse).ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{Mode, OFlags, open};

    use super::super::MountConfig;
    use super::super::nodes::ROOT;
    use super::*;

    #[test]
    fn several_threads_find_what_one_finds() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..300).map(|n| format!("file {n}")).collect();
        for (n, name) in names.iter().enumerate().filter(|(n, _)| n % 10 != 0) {
            fs::write(folder.path().join(name), vec![0; n]).unwrap();
        }
        let root = open(folder.path(), OFlags::PATH, Mode::empty()).unwrap();
        let fs = Fs::new(root, folder.path(), None, &MountConfig::default()).unwrap();
        let root = fs.nodes.get(ROOT).unwrap();
        let mut asked: Vec<_> = names.iter().map(|name| Some(name.as_bytes())).collect();
        asked[33] = None;
        for found in [fs.find_together(&root, &asked), fs.find_all(&root, &asked)] {
            assert_eq!(found.len(), asked.len());
            for (n, found) in found.into_iter().enumerate() {
                let size = found.as_ref().map(|found| found.stat.st_size);
                let expected = (n % 10 != 0 && n != 33).then(|| i64::try_from(n).unwrap());
                assert_eq!(size, expected, "{n}");
                if let Some(found) = found {
                    fs.nodes.forget(found.node.id, 1);
                    assert_eq!(fs.find_one(&root, asked[n]).unwrap().stat.st_ino, found.stat.st_ino);
                }
            }
        }
    }
}
