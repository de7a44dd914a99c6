//! Folders, read entry by entry.
//!
//! The kernel gets the lower folder's own offsets, so a program may seek in a folder that changes.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek};
use underseal_fuse::wire::{Body, dirent_len, dirent_type};

use super::entries::LookupEntry;
use super::nodes::FileNode;
use super::{Answer, Fs, locked};

/// The number of bytes of lower entries that are read together.
const CHUNK: usize = 32 << 10;

/// An open folder.
pub(super) struct OpenFolder {
    pub(super) node: Arc<FileNode>,
    fd: OwnedFd,
    stream: Mutex<Stream>,
}

#[derive(Default)]
struct Stream {
    /// The offset of the next entry in `ahead`, or of the lower descriptor when `ahead` is empty.
    position: u64,
    ahead: VecDeque<Entry>,
}

struct Entry {
    ino: u64,
    next: u64,
    kind: FileType,
    lower: Box<[u8]>,
    name: Box<[u8]>,
}

impl OpenFolder {
    pub(super) fn sync(&self) -> Answer<()> {
        rustix::fs::fsync(&self.fd)
    }
}

impl Fs {
    pub(super) fn open_folder(&self, node: u64) -> Answer<OpenFolder> {
        let node = self.nodes.get(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(self.nodes.fd(&node)?, ".", flags, Mode::empty())?;
        Ok(OpenFolder { node, fd, stream: Mutex::default() })
    }

    /// Puts as many entries into the reply as fit, with a LOOKUP reply for each if `plus`.
    pub(super) fn read_folder(
        &self,
        folder: &OpenFolder,
        offset: u64,
        room: usize,
        plus: bool,
        out: &mut Vec<u8>,
    ) -> Answer<()> {
        let mut stream = locked(&folder.stream);
        if stream.position != offset {
            seek(&folder.fd, SeekFrom::Start(offset))?;
            stream.ahead.clear();
            stream.position = offset;
        }
        loop {
            if stream.ahead.is_empty() && !self.fill(folder, &mut stream)? {
                return Ok(());
            }
            let mut len = out.len();
            let fits = |entry: &&Entry| {
                len += dirent_len(&entry.name, plus);
                len <= room
            };
            let count = stream.ahead.iter().take_while(fits).count();
            let entries = &stream.ahead.make_contiguous()[..count];
            let found = if plus { self.found_in(folder, entries) } else { Vec::new() };
            let mut found = found.into_iter();
            for entry in entries {
                if plus {
                    match found.next().flatten() {
                        Some(found) => Body(out).entry(found.node.id, &(&found.stat).into()),
                        None => Body(out).no_entry(),
                    };
                }
                Body(out).dirent(entry.ino, entry.next, dirent_type(entry.kind), &entry.name);
            }
            if let Some(last) = entries.last() {
                stream.position = last.next;
            }
            stream.ahead.drain(..count);
            if !stream.ahead.is_empty() {
                return Ok(());
            }
        }
    }

    fn found_in(&self, folder: &OpenFolder, entries: &[Entry]) -> Vec<Option<LookupEntry>> {
        // The kernel knows the folder itself and its parent.
        let name = |entry: &'_ Entry| !matches!(&*entry.name, b"." | b"..");
        let names: Vec<_> = entries.iter().map(|entry| name(entry).then_some(&*entry.lower)).collect();
        self.find_all(&folder.node, &names)
    }

    /// Reads some lower entries ahead. Returns true when there were any.
    fn fill(&self, folder: &OpenFolder, stream: &mut Stream) -> Answer<bool> {
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        let mut lower = RawDir::new(&folder.fd, &mut chunk);
        let mut any = false;
        while let Some(entry) = lower.next() {
            let entry = entry?;
            any = true;
            let bytes = entry.file_name().to_bytes();
            let name = match bytes {
                b"." | b".." => Some(bytes.to_vec()),
                _ => self.view.upper_name(&folder.fd, bytes),
            };
            match name {
                Some(name) => stream.ahead.push_back(Entry {
                    ino: entry.ino(),
                    next: entry.next_entry_cookie(),
                    kind: entry.file_type(),
                    lower: bytes.into(),
                    name: name.into(),
                }),
                None => {
                    log::debug!(
                        "{}/{}: not a name of this mount's",
                        folder.node.path(),
                        bytes.escape_ascii()
                    );
                }
            }
            if lower.is_buffer_empty() {
                break;
            }
        }
        Ok(any)
    }
}
