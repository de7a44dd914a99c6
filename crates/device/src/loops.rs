//! Loop devices and the files that they lie on.
//!
//! ```text
//!   below.rs    the file below a loop device, and its lock
//!   over.rs     the loop devices over a file
//!   ask.rs      the questions to them, by another process
//! ```

#![expect(unsafe_code, reason = "fork(2), and ioctls of loop devices, which rustix does not have")]

mod ask;
mod below;
mod over;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub use below::{LoopFile, file_below_loop, lock_loop_file};
pub use over::{LoopOver, loop_over};

/// The device and inode number of a file: several loop devices may lie on one.
pub type FileId = (u64, u64);

/// `LOOP_GET_STATUS64`, and the length of its `loop_info64` (include/uapi/linux/loop.h).
const GET_STATUS64: libc::Ioctl = 0x4c05;
const INFO: usize = 232;

/// `LOOP_CLR_FD`.
const CLR_FD: libc::Ioctl = 0x4c01;

/// Releases an open loop device: it gives up its file when no program has it open any more, this
/// one included.
///
/// # Errors
/// `ENXIO` for a loop device without a file; errors of the system.
pub fn release_loop(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), CLR_FD, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the numbers of the file that an open loop device, or a partition of one, lies on: the
/// kernel's own answer, for which it asks the file system. `None` where that does not tell.
pub fn loop_file_id(device: &File) -> Option<FileId> {
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
