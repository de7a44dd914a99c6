//! The file that a loop device lies on, or a partition of one. It is locked with the device: a lock
//! of the device alone leaves the file open to other programs, and to other loop devices.

use std::fs::{self, File};
use std::io;
use std::iter::successors;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use underseal_named_file::{backing_file, backing_range};

use super::{FileId, loop_file_id};
use crate::lock::lock_image_part;
use crate::{Error, ErrorKind, MOUNT_SOURCE, MountEntry, lock_image};

/// The most loop devices on each other that are followed. The kernel refuses a circle.
const DEEPEST: usize = 8;

/// The file at the bottom of a loop device: of one that lies on another one, the last file.
#[derive(Debug)]
pub struct LoopFile {
    path: PathBuf,
    id: FileId,
    /// The bytes of the file that the device shows, if not all.
    part: Option<Range<u64>>,
}

impl LoopFile {
    /// Returns the file of an open loop device, or of a partition of one; none for another device,
    /// and for a file that one of our servers shows: that server has locked its image, and a
    /// suspended one would not answer.
    pub fn of(device: &File) -> Option<Self> {
        let number = device.metadata().ok()?.rdev();
        let (mut path, mut id) = one_below(device)?;
        let mut part = backing_range(number);
        for _ in 1..DEEPEST {
            let open = open_again_where(&path, |file| is_file(file, id) && is_block_device(file));
            let Some(upper) = open.and_then(|open| open(false).ok()) else { break };
            let (Some(below), Ok(of)) = (one_below(&upper), upper.metadata()) else { break };
            part = part_below(part, backing_range(of.rdev()));
            (path, id) = below;
        }
        Some(Self { path, id, part })
    }

    /// The path by which the kernel names the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The numbers of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether an open file is this one.
    pub fn is(&self, file: &File) -> bool {
        is_file(file, self.id)
    }

    /// Opens the file, and returns whether to lock it exclusively: if that is requested, and this
    /// user may write to it. Returns `None` where the path leads elsewhere by now.
    pub fn open(&self, exclusive: bool) -> Option<(File, bool)> {
        // Another user may have replaced the file, so it is inspected before it is opened: a
        // terminal would become this process's, a tape would be rewound.
        let open = open_again_where(&self.path, |file| self.is(file))?;
        match open(true) {
            Ok(file) => Some((file, exclusive)),
            Err(_) => open(false).ok().map(|file| (file, false)),
        }
    }

    /// Opens the file for reading with these flags, and returns the byte where the device begins.
    /// Returns `None` where the path leads elsewhere by now, or this user may not read the file.
    pub(crate) fn open_to_read(&self, flags: i32) -> Option<(File, u64)> {
        let open = open_again_where(&self.path, |file| self.is(file))?;
        let file = crate::open_again(&open(false).ok()?, flags).ok()?;
        Some((file, self.part.as_ref().map_or(0, |part| part.start)))
    }

    /// Locks the open file, or the device's part of it.
    ///
    /// # Errors
    /// As [`lock_image`].
    pub fn lock(&self, file: &File, exclusive: bool) -> Result<(), Error> {
        let name = self.name();
        match &self.part {
            Some(part) => lock_image_part(file, &name, exclusive, part),
            None => lock_image(file, &name, exclusive),
        }
    }

    fn name(&self) -> String {
        format!("{}, on which the loop device lies,", self.path.display())
    }
}

/// Opens and locks the file of a loop device. Returns `None` for another device, and, with a
/// warning, where it cannot be locked.
///
/// # Errors
/// `Locked` when another program has that file, or the part of it.
pub fn lock_loop_file(device: &File, exclusive: bool) -> Result<Option<File>, Error> {
    let Some(below) = LoopFile::of(device) else { return Ok(None) };
    let Some((file, exclusive)) = below.open(exclusive) else {
        log::warn!("{} cannot be locked: another program may open it", below.name());
        return Ok(None);
    };
    match below.lock(&file, exclusive) {
        Err(e) if e.kind() == ErrorKind::Locked => Err(e),
        Err(e) => {
            log::warn!("{e}");
            Ok(None)
        }
        Ok(()) => Ok(Some(file)),
    }
}

/// Returns the path of the file at the bottom of the loop device at a path, without opening any;
/// none for another file, and for one that [a server shows](LoopFile::of).
pub fn file_below_loop(device: &Path) -> Option<PathBuf> {
    let one = |path: &Path| path_below(fs::metadata(path).ok().filter(is_of_block_device)?.rdev());
    successors(one(device), |path| one(path)).take(DEEPEST).last()
}

/// Returns the place of a device's part in the file below. `None` for all of that file.
fn part_below(part: Option<Range<u64>>, below: Option<Range<u64>>) -> Option<Range<u64>> {
    let (Some(part), Some(start)) = (&part, below.as_ref().map(|below| below.start)) else {
        return part.or(below);
    };
    Some(part.start.saturating_add(start)..part.end.saturating_add(start))
}

fn one_below(device: &File) -> Option<(PathBuf, FileId)> {
    let of = device.metadata().ok().filter(is_of_block_device)?;
    Some((path_below(of.rdev())?, loop_file_id(device)?))
}

fn path_below(device: u64) -> Option<PathBuf> {
    let is_served = |mounted: Option<MountEntry>| mounted.is_some_and(|mount| mount.source == MOUNT_SOURCE);
    backing_file(device).filter(|path| !MountEntry::at(path).is_ok_and(is_served))
}

/// Returns a function that opens the file at a path, read-only or for writing, if `is_meant`
/// accepts it.
fn open_again_where(
    path: &Path,
    is_meant: impl Fn(&File) -> bool,
) -> Option<impl Fn(bool) -> io::Result<File>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    is_meant(&found).then_some(move |writes| {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        File::options().read(true).write(writes).custom_flags(flags).open(path)
    })
}

fn is_file(file: &File, (device, inode): FileId) -> bool {
    file.metadata().is_ok_and(|of| (of.dev(), of.ino()) == (device, inode))
}

fn is_block_device(file: &File) -> bool {
    file.metadata().is_ok_and(|of| is_of_block_device(&of))
}

fn is_of_block_device(of: &fs::Metadata) -> bool {
    of.file_type().is_block_device()
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::fs::inotify;

    use super::*;

    #[test]
    fn a_file_is_looked_at_before_it_is_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        fs::write(&path, "x").unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &path, inotify::WatchFlags::OPEN).unwrap();
        let mut room = [MaybeUninit::uninit(); 256];
        let mut is_opened = || inotify::Reader::new(&watch, &mut room).next().is_ok();
        assert!(open_again_where(&path, |_| false).is_none() && !is_opened());
        let open = open_again_where(&path, |file| file.metadata().unwrap().len() == 1).unwrap();
        assert!(!is_opened());
        // The name may lead elsewhere by now.
        fs::rename(&path, scratch.path().join("other")).unwrap();
        open(false).unwrap();
        assert!(is_opened());
    }
}
