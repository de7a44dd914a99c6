//! The files under the mount: one file, or a folder of them. Only the size of the volume changes,
//! and with it the last file's.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use underseal_datapath::Mapping;

use rustix::fs::{StatVfs, StatVfsMountFlags};
use underseal_fuse::wire::{Attr, Body, dirent_len};

/// The kernel's node number of the mounted file or folder.
pub(super) const ROOT: u64 = 1;
/// The node number of a folder's first file.
const FIRST: u64 = 2;

const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// The files and their owner.
pub(super) struct Files {
    mapping: Arc<Mapping>,
    root: Root,
    uid: u32,
    gid: u32,
    read_only: bool,
    block: u32,
    since: u64,
}

enum Root {
    /// A file with the whole volume.
    File,
    /// A file for each segment, with the segment's start in the volume; it ends where the next
    /// segment begins.
    Folder(Vec<(String, u64)>),
}

impl Files {
    /// The volume as one file.
    pub(super) fn one(mapping: &Arc<Mapping>) -> Self {
        Self::new(mapping, Root::File)
    }

    /// The segments as files: `segment0`, `segment1`, ..
    pub(super) fn folder(mapping: &Arc<Mapping>) -> Self {
        // Without its key the volume has no segments to list, and cannot be read.
        let volume = mapping.volume();
        let segments = volume.iter().flat_map(|volume| volume.segments());
        let files = segments.enumerate().map(|(i, s)| (format!("segment{i}"), s.start));
        Self::new(mapping, Root::Folder(files.collect()))
    }

    fn new(mapping: &Arc<Mapping>, root: Root) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self {
            mapping: mapping.clone(),
            root,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            read_only: mapping.read_only(),
            block: mapping.preferred_block(),
            since,
        }
    }

    /// Returns true when the mount is a folder of files.
    pub(super) fn are_in_a_folder(&self) -> bool {
        matches!(self.root, Root::Folder(_))
    }

    /// Returns the time and the group of the files' attributes.
    pub(super) fn since_and_group(&self) -> (u64, u32) {
        (self.since, self.gid)
    }

    /// The same files with the time and the group of another server's mount.
    pub(super) fn with(self, (since, gid): (u64, u32)) -> Self {
        Self { since, gid, ..self }
    }

    /// Returns the part of the volume that a file shows.
    pub(super) fn range(&self, node: u64) -> Option<Range<u64>> {
        match &self.root {
            Root::File => (node == ROOT).then_some(0..self.size()),
            Root::Folder(files) => {
                let number = index(node)?;
                let end = files.get(number + 1).map_or_else(|| self.size(), |next| next.1);
                Some(files.get(number)?.1..end)
            }
        }
    }

    /// Returns the file whose size changes with the volume's, and that file's start in the volume.
    pub(super) fn last(&self) -> (u64, u64) {
        match &self.root {
            Root::File => (ROOT, 0),
            Root::Folder(files) => {
                let number = files.len().saturating_sub(1);
                (FIRST + number as u64, files.last().map_or(0, |last| last.1))
            }
        }
    }

    fn size(&self) -> u64 {
        self.mapping.size()
    }

    pub(super) fn attr(&self, node: u64) -> Option<Attr> {
        let write = if self.read_only { 0 } else { 0o200 };
        let (size, mode) = match (&self.root, self.range(node)) {
            (_, Some(range)) => (range.end - range.start, REGULAR | 0o400 | write),
            (Root::Folder(_), None) if node == ROOT => (0, FOLDER | 0o500),
            _ => return None,
        };
        let Self { uid, gid, block, since, .. } = *self;
        let (blocks, time) = (size / 512, (since, 0));
        let times = Attr { atime: time, mtime: time, ctime: time, ..Attr::default() };
        Some(Attr { ino: node, size, blocks, mode, nlink: 1, uid, gid, block, ..times })
    }

    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Option<Attr> {
        let Root::Folder(files) = &self.root else { return None };
        let at = files.iter().position(|(file, _)| parent == ROOT && file.as_bytes() == name)?;
        self.attr(FIRST + at as u64)
    }

    /// Appends a folder's entries from the number `from` on to a reply, as many as fit into `room`.
    pub(super) fn list(&self, from: u64, room: usize, out: &mut Vec<u8>) {
        let files = if let Root::Folder(files) = &self.root { &files[..] } else { &[] };
        let names = files.iter().zip(FIRST..).map(|((name, _), node)| (name.as_str(), node));
        let all = [(".", ROOT), ("..", ROOT)].into_iter().chain(names);
        for ((name, node), next) in all.zip(1..).skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            match self.attr(node) {
                Some(attr) if out.len() + dirent_len(name.as_bytes(), false) <= room => {
                    // The file's type as getdents(2) has it.
                    Body(out).dirent(node, next, attr.mode >> 12, name.as_bytes());
                }
                _ => break,
            }
        }
    }

    /// The totals of the filesystem, without free space.
    pub(super) fn totals(&self) -> StatVfs {
        let files = if let Root::Folder(files) = &self.root { files.len() } else { 1 };
        let block = u64::from(self.block.max(1));
        StatVfs {
            f_bsize: block,
            f_frsize: block,
            f_blocks: self.size() / block,
            f_bfree: 0,
            f_bavail: 0,
            f_files: files as u64,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }
}

fn index(node: u64) -> Option<usize> {
    usize::try_from(node.checked_sub(FIRST)?).ok()
}

#[cfg(test)]
mod tests {
    use underseal_device::RamDevice;
    use underseal_volume::{Segment, SegmentKind, Volume};

    use super::*;

    /// A volume of three segments of 512 bytes.
    fn mapping() -> Arc<Mapping> {
        let segment = |n: u64| Segment { start: n * 512, len: 512, kind: SegmentKind::Zero };
        let volume = Volume::new((0..3).map(segment).collect()).unwrap();
        Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(512))).unwrap())
    }

    #[test]
    fn the_last_file_and_no_other_changes_with_the_volume() {
        let mapping = mapping();
        let (folder, one) = (Files::folder(&mapping), Files::one(&mapping));
        assert_eq!((folder.range(FIRST), folder.range(FIRST + 2)), (Some(0..512), Some(1024..1536)));
        assert_eq!((folder.last(), one.last()), ((FIRST + 2, 1024), (ROOT, 0)));
        mapping.resize(Some(4096), std::time::Duration::ZERO).unwrap();
        assert_eq!((folder.range(FIRST + 1), folder.range(FIRST + 2)), (Some(512..1024), Some(1024..4096)));
        assert_eq!((folder.range(FIRST + 3), one.range(ROOT)), (None, Some(0..4096)));
        assert_eq!(one.attr(ROOT).map(|attr| (attr.size, attr.blocks)), Some((4096, 8)));
    }

    #[test]
    fn a_listing_stays_within_its_room() {
        let files = Files::folder(&mapping());
        let listed = |from, room| {
            let mut out = Vec::new();
            files.list(from, room, &mut out);
            out.len()
        };
        // The entries "." and ".." take 32 bytes each; so does "segment0".
        assert_eq!((listed(0, 63), listed(0, 64), listed(0, 1024)), (32, 64, 64 + 3 * 32));
        assert_eq!((listed(4, 1024), listed(5, 1024), listed(u64::MAX, 1024)), (32, 0, 0));
    }
}
