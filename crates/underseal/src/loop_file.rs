//! The file below a loop device whose image a server passes on to the next one, locked.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use underseal_device::{ErrorKind, FileDevice, LoopFile, lock_image, lock_loop_file};

/// Locks the file at the bottom of an image that is a loop device, or the image's part of it, for
/// as long as the image is open. `Locked` when another program has that file or part.
pub(crate) fn lock_below(image: &FileDevice, exclusive: bool) -> underseal_device::Result<()> {
    if let Some(file) = lock_loop_file(image.file(), exclusive)? {
        image.keep_open(file);
    }
    Ok(())
}

/// Locks a file as the image of a writer, and the file below it where it is a loop device, which is
/// returned, until both are closed. Where there can be no locks, there are none. `Locked` when
/// another program has one of them.
pub(crate) fn lock_as_image(file: &File, path: &Path) -> underseal_device::Result<Option<File>> {
    let below = lock_loop_file(file, true)?;
    match lock_image(file, &path.display().to_string(), true) {
        Err(e) if e.kind() == ErrorKind::Locked => Err(e),
        _ => Ok(below),
    }
}

/// Takes the file below an image that is a loop device from descriptors of another server, of which
/// the first is the image's. The lock of an open file is all processes' that have it: the file is
/// never without one.
pub(crate) fn carried(fds: &mut Vec<OwnedFd>) -> Option<File> {
    let image = File::from(fds.first()?.try_clone().ok()?);
    let below = LoopFile::of(&image)?;
    let is_below = |fd: &OwnedFd| fd.try_clone().is_ok_and(|fd| below.is(&File::from(fd)));
    let at = fds.iter().skip(1).position(is_below)? + 1;
    Some(fds.remove(at).into())
}

/// Keeps a [`carried`] file open as long as the image, with its lock. Fails with `Locked` where the
/// other server had none, and another program has one.
pub(crate) fn keep_carried(image: &FileDevice, file: File, exclusive: bool) -> underseal_device::Result<()> {
    match LoopFile::of(image.file()) {
        Some(below) => below.lock(&file, exclusive)?,
        None => lock_image(&file, "the file below the image", exclusive)?,
    }
    image.keep_open(file);
    Ok(())
}
