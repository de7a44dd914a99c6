//! The loop devices over a file: their users change it past every lock of the file.

#![expect(unsafe_code, reason = "an ioctl of loop devices, which rustix does not have")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::file_below_loop;

/// `LOOP_GET_STATUS64`, and the length of its `loop_info64` (include/uapi/linux/loop.h).
const GET_STATUS64: libc::Ioctl = 0x4c05;
const INFO: usize = 232;

/// The device and inode number of a file.
type FileId = (u64, u64);

/// Returns a loop device over a regular file, or another loop device over the file of a loop
/// device, if there is one. A device that this user may not open is known by the path that it was
/// made with, which leads elsewhere once its file is renamed, and in another mount namespace.
pub fn loop_over(file: &File) -> Option<PathBuf> {
    let of = file.metadata().ok()?;
    let (id, itself) = match () {
        () if of.is_file() => ((of.dev(), of.ino()), None),
        () if of.file_type().is_block_device() => (file_of(file, &of)?, Some(of.rdev())),
        () => return None,
    };
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    let loops = disks.filter(|disk| disk.file_name().as_bytes().starts_with(b"loop"));
    let mut nodes = loops.map(|disk| (Path::new("/dev").join(disk.file_name()), disk.path()));
    let found = nodes.find(|(node, folder)| {
        let backing = folder.join("loop/backing_file");
        backing.exists() && !is_itself(node, itself) && id_below(node, &backing) == Some(id)
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

/// The file that an open loop device, or a partition of one, lies on.
fn file_of(device: &File, of: &fs::Metadata) -> Option<FileId> {
    status(device).or_else(|| id_at(&file_below_loop(of.rdev())?))
}

fn id_below(node: &Path, backing: &Path) -> Option<FileId> {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(node);
    let by_path = || {
        let path = fs::read(backing).ok()?;
        id_at(Path::new(OsStr::from_bytes(path.trim_ascii_end())))
    };
    open.ok().and_then(|device| status(&device)).or_else(by_path)
}

fn id_at(path: &Path) -> Option<FileId> {
    let of = fs::metadata(path).ok().filter(|_| path.is_absolute())?;
    Some((of.dev(), of.ino()))
}

/// The kernel's answer about a loop device's file.
fn status(device: &File) -> Option<FileId> {
    let mut info = [0_u64; INFO / 8];
    // SAFETY: the kernel fills the structure, of `INFO` bytes, during the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS64, info.as_mut_ptr()) } != 0 {
        return None;
    }
    // The kernel's own encoding of a device number.
    let [device, inode] = [info[0], info[1]];
    let field = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
    let (major, minor) = (field(device >> 8 & 0xfff), field(device & 0xff | device >> 12 & 0xf_ff00));
    Some((libc::makedev(major, minor), inode))
}
