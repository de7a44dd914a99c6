//! The file below a loop device. It is locked with the device: a lock of the device alone leaves
//! the file open to other programs, and to other loop devices.

use std::fs::{self, File};
use std::iter::successors;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use underseal_device::{ErrorKind, FileDevice, lock_image, lock_image_part, part_of_loop_file};
use underseal_dm::{DeviceNumber, backing_file};
use underseal_export::fuse::SOURCE;
use underseal_fuse::MountEntry;

/// The most loop devices on each other that are followed. The kernel refuses a circle.
const DEEPEST: usize = 8;

/// The device and inode number of a file: several loop devices may use it.
pub(crate) type FileId = (DeviceNumber, u64);

/// Locks the file at the bottom of an image that is a loop device, or the image's part of it, for as
/// long as the image is open. `Locked` when another program has that file or part.
pub(crate) fn lock_below(image: &FileDevice, exclusive: bool) -> underseal_device::Result<()> {
    let Some((path, id)) = find(image.file()) else { return Ok(()) };
    let name = name_of(&path);
    let Some((file, exclusive)) = open_to_lock(&path, id, exclusive) else {
        log::warn!("{name} cannot be locked: another program may open it");
        return Ok(());
    };
    match lock(image, (&file, &path), exclusive) {
        Err(e) if e.kind() == ErrorKind::Locked => Err(e),
        Err(e) => {
            log::warn!("{e}");
            Ok(())
        }
        Ok(()) => {
            image.keep_open(file);
            Ok(())
        }
    }
}

/// Takes the file below an image that is a loop device from descriptors of another server, of which
/// the first is the image's. The lock of an open file is all processes' that have it: the file is
/// never without one.
pub(crate) fn carried(fds: &mut Vec<OwnedFd>) -> Option<File> {
    let image = File::from(fds.first()?.try_clone().ok()?);
    let (_, id) = find(&image)?;
    let is_below = |fd: &OwnedFd| fd.try_clone().is_ok_and(|fd| is_file(&File::from(fd), id));
    let at = fds.iter().skip(1).position(is_below)? + 1;
    Some(fds.remove(at).into())
}

/// Keeps a [`carried`] file open as long as the image, with its lock. Fails with `Locked` where the
/// other server had none, and another program has one.
pub(crate) fn keep_carried(image: &FileDevice, file: File, exclusive: bool) -> underseal_device::Result<()> {
    let path = find(image.file()).map_or_else(PathBuf::new, |(path, _)| path);
    lock(image, (&file, &path), exclusive)?;
    image.keep_open(file);
    Ok(())
}

/// Locks a file below an image: a partition's part of it.
fn lock(image: &FileDevice, (file, path): (&File, &Path), exclusive: bool) -> underseal_device::Result<()> {
    let name = name_of(path);
    let device = image.file().metadata().map_or(0, |of| of.rdev());
    // On a loop device on another one it is unknown where the part lies.
    let is_direct = path_of(DeviceNumber::of_node(device)).as_deref() == Some(path);
    match part_of_loop_file(device).filter(|_| is_direct) {
        Some(part) => lock_image_part(file, &name, exclusive, &part),
        None => lock_image(file, &name, exclusive),
    }
}

fn name_of(path: &Path) -> String {
    format!("{}, on which the loop device lies,", path.display())
}

/// Returns the path and the numbers of the file below a loop device, or below a partition of one; of
/// a loop device on another one, the file at the bottom. Returns `None` for a file that Underseal
/// serves: its server has locked the image, and a suspended server would not answer.
pub(crate) fn find(node: &File) -> Option<(PathBuf, FileId)> {
    let one = |node: &File| {
        let of = node.metadata().ok().filter(|of| of.file_type().is_block_device())?;
        Some((path_of(DeviceNumber::of_node(of.rdev()))?, backing_file(node).ok()?))
    };
    let mut found = one(node)?;
    for _ in 1..DEEPEST {
        let (path, id) = &found;
        let open = open_again_where(path, |file| is_file(file, *id) && is_block_device(file));
        match open.and_then(|open| one(&open(false).ok()?)) {
            Some(below) => found = below,
            None => break,
        }
    }
    Some(found)
}

fn is_block_device(file: &File) -> bool {
    file.metadata().is_ok_and(|of| of.file_type().is_block_device())
}

/// The path of the file below an image that is a loop device, be it on a further loop device.
pub(crate) fn below(image: &Path) -> Option<PathBuf> {
    let one = |image: &Path| {
        let of = fs::metadata(image).ok().filter(|of| of.file_type().is_block_device())?;
        path_of(DeviceNumber::of_node(of.rdev()))
    };
    successors(one(image), |path| one(path)).take(DEEPEST).last()
}

/// The path of the file that a loop device, or a partition of one, lies on. As for [`find`].
pub(crate) fn path_of(number: DeviceNumber) -> Option<PathBuf> {
    let path = underseal_device::file_below_loop(number.for_node())?;
    let is_served = |mounted: MountEntry| mounted.source == SOURCE;
    if MountEntry::at(&path).is_ok_and(|mounted| mounted.is_some_and(is_served)) {
        return None;
    }
    Some(path)
}

/// Opens that file, and returns whether to lock it exclusively: if that is requested, and this user
/// may write to it. Returns `None` where the path leads elsewhere by now.
pub(crate) fn open_to_lock(path: &Path, id: FileId, exclusive: bool) -> Option<(File, bool)> {
    // Another user may have replaced the file, so it is inspected before it is opened: a terminal
    // would become this process's, a tape would be rewound.
    let open = open_again_where(path, |file| is_file(file, id))?;
    match open(true) {
        Ok(file) => Some((file, exclusive)),
        Err(_) => open(false).ok().map(|file| (file, false)),
    }
}

/// Returns a function that opens the file at a path, read-only or for writing, if `is_meant`
/// accepts it.
fn open_again_where(
    path: &Path,
    is_meant: impl Fn(&File) -> bool,
) -> Option<impl Fn(bool) -> std::io::Result<File>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    is_meant(&found).then_some(move |writes| {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        File::options().read(true).write(writes).custom_flags(flags).open(path)
    })
}

fn is_file(file: &File, (device, inode): FileId) -> bool {
    file.metadata().is_ok_and(|of| (DeviceNumber::of_node(of.dev()), of.ino()) == (device, inode))
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
