//! The filter for the kernel's questions: of ioctls only device mapper's, of files every open,
//! since a filter sees no paths.

#![expect(unsafe_code, reason = "a seccomp filter")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `seccomp_data`: the offsets of the call's number, the architecture and the low half of the
/// second argument. Both architectures are little-endian.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const SECOND: u32 = 24;
/// The type of device mapper's ioctls.
const DM_IOCTL: u32 = 0xfd;
/// This machine's system calls (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// The calls that are always asked about, whatever their arguments are.
#[cfg(target_arch = "x86_64")]
const ASKED: [libc::c_long; 5] =
    [libc::SYS_open, libc::SYS_openat, libc::SYS_openat2, libc::SYS_readlink, libc::SYS_readlinkat];
#[cfg(not(target_arch = "x86_64"))]
const ASKED: [libc::c_long; 3] = [libc::SYS_openat, libc::SYS_openat2, libc::SYS_readlinkat];

/// Returns the instructions. Calls of other architectures are left to the kernel.
#[expect(clippy::cast_possible_truncation, reason = "instructions have 16 bits, and calls small numbers")]
fn program() -> Vec<libc::sock_filter> {
    let load = |at| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let back = |what| instruction(libc::BPF_RET | libc::BPF_K, what);
    let alu = |how, with| instruction(libc::BPF_ALU | how | libc::BPF_K, with);
    let equals = |what, jt, jf| libc::sock_filter {
        jt,
        jf,
        ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, what)
    };
    let mut program = vec![
        load(ARCH),
        equals(NATIVE, 1, 0),
        back(libc::SECCOMP_RET_ALLOW),
        load(NUMBER),
        equals(libc::SYS_ioctl as u32, 0, 4),
        load(SECOND),
        alu(libc::BPF_RSH, 8),
        alu(libc::BPF_AND, 0xff),
        equals(DM_IOCTL, ASKED.len() as u8 + 1, ASKED.len() as u8),
    ];
    for (after, call) in (0..ASKED.len()).rev().zip(ASKED) {
        program.push(equals(call as u32, after as u8 + 1, 0));
    }
    program.push(back(libc::SECCOMP_RET_ALLOW));
    program.push(back(libc::SECCOMP_RET_USER_NOTIF));
    program
}

#[expect(clippy::cast_possible_truncation, reason = "instructions have 16 bits")]
fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Installs the filter for this process, and returns the listener.
pub(super) fn install() -> io::Result<OwnedFd> {
    let mut program = program();
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let set = |flags: libc::c_ulong| {
        // SAFETY: the kernel copies the instructions during the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
        };
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)
    };
    // A signal would repeat a call that is done already; before Linux 5.19 this cannot be
    // prevented.
    let fd = set(listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV).or_else(|e| match e.kind() {
        io::ErrorKind::InvalidInput => set(listener),
        _ => Err(e),
    })?;
    // SAFETY: the kernel has made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns true when the kernel can ask.
pub(super) fn is_possible() -> bool {
    let action: u32 = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: the kernel reads the number during the call.
    let known =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    known == 0
}
