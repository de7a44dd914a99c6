//! The locks that keep other programs off the file of an image.

use std::fs::{self, File};
use std::io::ErrorKind as IoKind;
use std::iter::successors;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use underseal_device::{ErrorKind, file_below_loop, lock_image, lock_image_part, part_of_loop_file};

use crate::Result;

/// The most loop devices on each other that are followed. The kernel refuses a circle.
pub(crate) const DEEPEST: usize = 8;

/// Opens the file of a descriptor again and locks it, as a file that is opened by its path. `None`
/// for what is neither a regular file nor a block device, for a file that this user may not open
/// again, and where the file system has no locks.
pub(crate) fn lock_again(descriptor: RawFd, writes: bool) -> Result<Option<File>> {
    let path = format!("/proc/self/fd/{descriptor}");
    let is_lockable = |of: &fs::Metadata| of.is_file() || of.file_type().is_block_device();
    if !fs::metadata(&path).is_ok_and(|of| is_lockable(&of)) {
        return Ok(None);
    }
    lock(Path::new(&path), "the open file", writes, None)
}

/// Opens the file of a descriptor again, for reading: a lock of the new open file is no lock of the
/// descriptor's.
pub(crate) fn open_again(descriptor: RawFd) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let of = fs::metadata(&path)?;
    if of.is_file() || of.file_type().is_block_device() {
        File::open(path)
    } else {
        Err(IoKind::InvalidInput.into())
    }
}

/// Locks the file at the bottom of a loop device, or the part of it that a partition of one is: a
/// lock of the device alone leaves the file open to other programs, and to other loop devices.
pub(crate) fn lock_below_loop(device: &File, writes: bool) -> Result<Option<File>> {
    let below = |of: fs::Metadata| file_below_loop(of.rdev()).filter(|_| of.file_type().is_block_device());
    let first = device.metadata().ok().and_then(below);
    let files = successors(first, |path| fs::metadata(path).ok().and_then(below));
    let Some((depth, path)) = files.take(DEEPEST).enumerate().last() else { return Ok(None) };
    // On a loop device on another one it is unknown where the part lies.
    let of_device = device.metadata().ok().filter(|_| depth == 0);
    let part = of_device.and_then(|of| part_of_loop_file(of.rdev()));
    // The server of a file that is mounted has locked the image; a suspended one would not answer.
    if is_mount_point(&path) {
        return Ok(None);
    }
    // Another user may have put a terminal or a tape at the path: it is looked at before it is
    // opened.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(found) = rustix::fs::open(&path, flags, Mode::empty()) else { return Ok(None) };
    let found = File::from(found);
    if !found.metadata().is_ok_and(|of| of.is_file() || of.file_type().is_block_device()) {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let name = format!("{}, on which the loop device lies,", path.display());
    lock(Path::new(&again), &name, writes, part)
}

fn lock(path: &Path, name: &str, writes: bool, part: Option<Range<u64>>) -> Result<Option<File>> {
    let open = |writes| File::options().read(true).write(writes).open(path);
    let (file, writes) = match open(writes) {
        Err(e) if writes && matches!(e.kind(), IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem) => {
            (open(false), false)
        }
        opened => (opened, writes),
    };
    let Ok(file) = file else { return Ok(None) };
    let locked = match part {
        Some(part) => lock_image_part(&file, name, writes, &part),
        None => lock_image(&file, name, writes),
    };
    match locked {
        Err(e) if e.kind() == ErrorKind::Locked => Err(e.into()),
        locked => Ok(locked.is_ok().then_some(file)),
    }
}

/// Whether something is mounted on exactly this path, by the mount table: the path itself is not
/// looked at.
fn is_mount_point(path: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let escaped: Vec<u8> = path.as_os_str().as_bytes().iter().flat_map(|&byte| escape(byte)).collect();
    table
        .split(|&byte| byte == b'\n')
        .any(|line| line.split(|&byte| byte == b' ').nth(4) == Some(&escaped[..]))
}

/// A byte of a path as proc(5) writes it.
fn escape(byte: u8) -> Vec<u8> {
    if matches!(byte, b' ' | b'\t' | b'\n' | b'\\') {
        format!("\\{byte:03o}").into_bytes()
    } else {
        vec![byte]
    }
}
