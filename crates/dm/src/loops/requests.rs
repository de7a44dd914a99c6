//! The kernel's requests to loop devices, and their structures.
//!
//! Source: include/uapi/linux/loop.h.

#![expect(unsafe_code, reason = "ioctls of loop devices")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub(super) const CLR_FD: libc::Ioctl = 0x4c01;
const SET_STATUS64: libc::Ioctl = 0x4c04;
pub(super) const SET_CAPACITY: libc::Ioctl = 0x4c07;
pub(super) const SET_BLOCK_SIZE: libc::Ioctl = 0x4c09;
const CONFIGURE: libc::Ioctl = 0x4c0a;
pub(super) const CTL_ADD: libc::Ioctl = 0x4c80;
pub(super) const CTL_REMOVE: libc::Ioctl = 0x4c81;

pub(super) const READ_ONLY: u32 = 1;
pub(super) const DIRECT_IO: u32 = 16;
/// The size of `loop_info64`, and of a name in it.
const INFO: usize = 232;
pub(super) const NAME: usize = 64;

/// `loop_config`.
#[repr(C)]
pub(super) struct LoopConfig {
    pub(super) fd: u32,
    pub(super) block: u32,
    pub(super) info: LoopInfo,
    pub(super) reserved: [u64; 8],
}

/// `loop_info64`.
#[repr(C)]
pub(super) struct LoopInfo {
    device: u64,
    inode: u64,
    before: [u64; 3],
    number: u32,
    encrypt: [u32; 2],
    pub(super) flags: u32,
    file_name: [u8; NAME],
    after: [u8; 112],
}

const _: () = assert!(size_of::<LoopInfo>() == INFO && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    pub(super) const fn new(flags: u32, file_name: [u8; NAME]) -> Self {
        Self {
            device: 0,
            inode: 0,
            before: [0; 3],
            number: 0,
            encrypt: [0; 2],
            flags,
            file_name,
            after: [0; 112],
        }
    }
}

pub(super) fn ioctl(file: &File, request: libc::Ioctl, argument: u64) -> io::Result<()> {
    // SAFETY: these requests take a number, or nothing.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, argument) })
}

pub(super) fn configure(node: &File, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: the kernel reads the structure, whose size is asserted above, during the call.
    check(unsafe { libc::ioctl(node.as_raw_fd(), CONFIGURE, std::ptr::from_ref(config)) })
}

pub(super) fn set_status(node: &File, info: &LoopInfo) -> io::Result<()> {
    // SAFETY: the same holds for this structure.
    check(unsafe { libc::ioctl(node.as_raw_fd(), SET_STATUS64, std::ptr::from_ref(info)) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
