//! The file that a loop device lies on.
//!
//! A loop device has no memory of errors: a flush syncs the file through the open file of the
//! kernel's driver, and an error of the file goes to whichever program flushed the device first. So
//! does an end of the file before the device's. This program's own open file misses neither.

#![expect(unsafe_code, reason = "LOOP_GET_STATUS64, for which rustix has no function")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, makedev, openat};
use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl};
use underseal_named_file::{backing_file, backing_range};

use super::cut::{Fault, KnownSize};
use super::write_back;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rest: [u64; 27],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

const LOOP_GET_STATUS64: u32 = 0x4c05;

/// A loop device's file, open in this program, too.
pub(super) struct LoopFile {
    file: File,
    is_stacked: bool,
    pub(super) name: String,
    /// The place of the device's first byte.
    start: u64,
    size: KnownSize,
}

impl LoopFile {
    /// Opens the file that a loop device, or a partition of one, lies on. `None` for other devices
    /// and files, and where the file cannot be opened.
    pub(super) fn below(device: &File, size: u64) -> Option<Self> {
        let of = device.metadata().ok().filter(|of| of.rdev() != 0)?;
        let path = backing_file(of.rdev())?;
        let file = open_same(device, &path)?;
        let range = backing_range(of.rdev()).unwrap_or(0..size);
        let len = range.end.min(file.metadata().ok()?.len());
        let (is_stacked, name) = (write_back::is_stacked(&file), path.display().to_string());
        Some(Self { size: KnownSize::new(len, &file), file, is_stacked, name, start: range.start })
    }

    /// The write-back error that this open file has not reported yet.
    pub(super) fn ask(&self) -> Result<(), Errno> {
        write_back::ask(&self.file, self.is_stacked)
    }

    /// Relies on the device's bytes before `end` from now on.
    pub(super) fn need(&self, end: u64) {
        self.size.need(self.start.saturating_add(end));
    }

    /// As [`KnownSize::look`].
    pub(super) fn look(&self) -> Option<Fault> {
        self.size.look(&self.file)
    }
}

/// Opens the file at `path` if it is the loop device's: in this mount namespace the path may lead
/// elsewhere.
fn open_same(device: &File, path: &Path) -> Option<File> {
    // SAFETY: the kernel writes a `struct loop_info64`, whose size and layout are those of
    // `LoopInfo`.
    let info = unsafe { ioctl(device, Getter::<{ LOOP_GET_STATUS64 }, LoopInfo>::new()) }.ok()?;
    // Nothing is opened for reading before it is known to be that file.
    let found = File::from(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?);
    let of = found.metadata().ok().filter(std::fs::Metadata::is_file)?;
    // The kernel's form of a device number in 64 bits.
    let (major, minor) = (info.device >> 8 & 0xfff, info.device & 0xff | info.device >> 12 & 0xfff_ff00);
    let device = makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
    if (of.dev(), of.ino()) != (device, info.inode) {
        return None;
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()
}
