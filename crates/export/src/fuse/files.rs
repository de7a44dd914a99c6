//! What is found under the mount: one file, or a folder of them. It never changes.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use underseal_datapath::Mapping;

use super::protocol::{Attr, push_dirent};

/// The kernel's number for what is mounted.
pub(super) const ROOT: u64 = 1;
/// The number of a folder's first file.
const FIRST: u64 = 2;

const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// The files and who owns them.
pub(super) struct Files {
    root: Root,
    uid: u32,
    gid: u32,
    read_only: bool,
    block: u32,
    since: u64,
    size: u64,
}

enum Root {
    /// The whole volume.
    File,
    /// A file for each segment: the part of the volume that it shows.
    Folder(Vec<(String, Range<u64>)>),
}

impl Files {
    /// The volume as one file.
    pub(super) fn one(mapping: &Mapping) -> Self {
        Self::new(mapping, Root::File)
    }

    /// Its segments as files: `segment0`, `segment1`, ..
    pub(super) fn folder(mapping: &Mapping) -> Self {
        // Without its key the volume cannot be asked, nor read.
        let volume = mapping.volume();
        let segments = volume.iter().flat_map(|volume| volume.segments());
        let files = segments.enumerate().map(|(i, s)| (format!("segment{i}"), s.start..s.end()));
        Self::new(mapping, Root::Folder(files.collect()))
    }

    fn new(mapping: &Mapping, root: Root) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self {
            root,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            read_only: mapping.read_only(),
            block: mapping.preferred_block(),
            since,
            size: mapping.size(),
        }
    }

    /// The part of the volume that a file shows.
    pub(super) fn range(&self, node: u64) -> Option<Range<u64>> {
        match &self.root {
            Root::File => (node == ROOT).then_some(0..self.size),
            Root::Folder(files) => Some(files.get(index(node)?)?.1.clone()),
        }
    }

    pub(super) fn attr(&self, node: u64) -> Option<Attr> {
        let write = if self.read_only { 0 } else { 0o200 };
        let (size, mode) = match (&self.root, self.range(node)) {
            (_, Some(range)) => (range.end - range.start, REGULAR | 0o400 | write),
            (Root::Folder(_), None) if node == ROOT => (0, FOLDER | 0o500),
            _ => return None,
        };
        let Self { uid, gid, block, since: time, .. } = *self;
        Some(Attr { node, size, mode, uid, gid, block, time })
    }

    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Option<Attr> {
        let Root::Folder(files) = &self.root else { return None };
        let at = files.iter().position(|(file, _)| parent == ROOT && file.as_bytes() == name)?;
        self.attr(FIRST + at as u64)
    }

    /// A folder's entries from the number `from` on, as many as `room` bytes hold.
    pub(super) fn list(&self, from: u64, room: usize) -> Vec<u8> {
        let files = if let Root::Folder(files) = &self.root { &files[..] } else { &[] };
        let names = files.iter().zip(FIRST..).map(|((name, _), node)| (name.as_str(), node));
        let all = [(".", ROOT), ("..", ROOT)].into_iter().chain(names);
        let mut listing = Vec::new();
        for ((name, node), next) in all.zip(1..).skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            let fits = self.attr(node).is_some_and(|a| push_dirent(&mut listing, room, &a, next, name));
            if !fits {
                break;
            }
        }
        listing
    }

    /// All of it: bytes, files, and a block's bytes.
    pub(super) fn totals(&self) -> (u64, u64, u32) {
        let files = if let Root::Folder(files) = &self.root { files.len() } else { 1 };
        (self.size, files as u64, self.block)
    }
}

fn index(node: u64) -> Option<usize> {
    usize::try_from(node.checked_sub(FIRST)?).ok()
}
