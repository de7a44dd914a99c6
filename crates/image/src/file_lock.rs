//! The locks that keep other programs off the file of an image.

use std::fs::{self, File};
use std::io::ErrorKind as IoKind;
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;

use underseal_device::{ErrorKind, lock_image};

use crate::Result;

/// Opens the file of a descriptor again and locks it, as a file that is opened by its path. `None`
/// for what is neither a regular file nor a block device, for a file that this user may not open
/// again, and where the file system has no locks.
pub(crate) fn lock_again(descriptor: RawFd, writes: bool) -> Result<Option<File>> {
    let opened = match open_again(descriptor, writes) {
        Err(e) if writes && matches!(e.kind(), IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem) => {
            open_again(descriptor, false).map(|file| (file, false))
        }
        opened => opened.map(|file| (file, writes)),
    };
    let Ok((file, writes)) = opened else { return Ok(None) };
    match lock_image(&file, "the open file", writes) {
        Err(e) if e.kind() == ErrorKind::Locked => Err(e.into()),
        locked => Ok(locked.is_ok().then_some(file)),
    }
}

/// Opens the file of a descriptor again: a lock of the new open file is none of the descriptor's.
///
/// Fails with `InvalidInput` for what is neither a regular file nor a block device.
pub(crate) fn open_again(descriptor: RawFd, writes: bool) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let of = fs::metadata(&path)?;
    if of.is_file() || of.file_type().is_block_device() {
        File::options().read(true).write(writes).open(path)
    } else {
        Err(IoKind::InvalidInput.into())
    }
}
