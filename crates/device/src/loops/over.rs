//! The loop devices over a file: their users change it past every lock of the file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::{FileId, file_of};
use crate::file::sysfs;
use crate::mount_table::MountTable;

/// Returns a loop device over a regular file, or another loop device over the file of a loop
/// device, if there is one. A device that this user may not open is known by the path that it was
/// made with, which leads elsewhere once its file is renamed, and in another mount namespace.
///
/// The kernel asks a server for the numbers of a FUSE file below a loop device, or of a file on
/// another machine. That server may not answer, so that a device whose path lies there is left out,
/// unless the file itself lies on the same file system.
pub fn loop_over(file: &File) -> Option<PathBuf> {
    let of = file.metadata().ok()?;
    let (id, itself) = match () {
        () if of.is_file() => ((of.dev(), of.ino()), None),
        () if of.file_type().is_block_device() => (id_of_device(file, &of)?, Some(of.rdev())),
        () => return None,
    };
    let mounts = MountTable::read().ok();
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    let loops = disks.filter(|disk| disk.file_name().as_bytes().starts_with(b"loop"));
    let mut nodes = loops.map(|disk| (Path::new("/dev").join(disk.file_name()), disk.path()));
    let found = nodes.find(|(node, folder)| {
        let backing = folder.join("loop/backing_file");
        let Ok(path) = fs::read(backing) else { return false };
        let path = Path::new(OsStr::from_bytes(path.trim_ascii_end()));
        !is_itself(node, itself)
            && may_lie_on(mounts.as_ref(), path, id.0)
            && id_below(node, path) == Some(id)
    });
    found.map(|(node, _)| node)
}

/// Whether a node is the device itself, or the disk that it is a partition of.
fn is_itself(node: &Path, itself: Option<u64>) -> bool {
    let Some(itself) = itself else { return false };
    let disk = fs::metadata(node).map(|of| of.rdev());
    let whole = fs::canonicalize(format!("/sys/dev/block/{}:{}", libc::major(itself), libc::minor(itself)));
    let is_part = whole.is_ok_and(|whole| whole.parent().and_then(Path::file_name) == node.file_name());
    disk.is_ok_and(|disk| disk == itself) || is_part
}

fn id_of_device(device: &File, of: &fs::Metadata) -> Option<FileId> {
    file_of(device).or_else(|| id_at(&sysfs::file_below_loop(of.rdev())?))
}

/// Whether a loop device with this path may lie over a file of a file system: not where the path
/// is a server's, of another file system.
fn may_lie_on(mounts: Option<&MountTable>, path: &Path, device: u64) -> bool {
    let on = mounts.and_then(|mounts| mounts.above(path));
    on.is_none_or(|(mount, number)| number == device || !mount.is_served())
}

fn id_below(node: &Path, path: &Path) -> Option<FileId> {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(node);
    open.ok().and_then(|device| file_of(&device)).or_else(|| id_at(path))
}

/// The numbers of the file at a path, from the kernel's memory where that has them.
fn id_at(path: &Path) -> Option<FileId> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let of = statx(CWD, path, flags, StatxFlags::INO).ok().filter(|_| path.is_absolute())?;
    Some((libc::makedev(of.stx_dev_major, of.stx_dev_minor), of.stx_ino))
}
