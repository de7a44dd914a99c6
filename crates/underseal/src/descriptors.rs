//! Descriptors that programs inherit.

#![expect(unsafe_code, reason = "system calls between fork and exec; descriptors by their numbers")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, fstat};

/// The first descriptor behind stdin, stdout and stderr.
const FIRST: libc::c_int = 3;
/// The descriptors that are closed one by one, where the kernel cannot close them all at once.
const MOST: libc::c_int = 1024;

/// Makes a program inherit the three standard descriptors and no other one: the caller of this
/// program may have given it some, such as that of a passphrase.
pub(crate) fn standard_only(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes system calls and nothing else, which a child may do between fork
    // and exec; they change flags of descriptors of the child.
    unsafe { command.pre_exec(close_at_exec) }
}

/// Marks all descriptors but the standard ones as closed by the next exec.
fn close_at_exec() -> io::Result<()> {
    // SAFETY: the call has numbers as its arguments, and changes flags only.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    // Linux before 5.11.
    for number in FIRST..MOST {
        // SAFETY: as above. A number that is no descriptor is refused.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Returns the open descriptors apart from the standard ones.
pub(crate) fn inherited() -> Vec<RawFd> {
    // The directory is closed by the time its numbers are used, so its own number is invalid then.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.filter(|fd| *fd >= FIRST).collect();
    // SAFETY: the borrow lasts for this call, which fails cleanly on a number that is no open
    // descriptor.
    let is_open = |fd: &RawFd| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) }).is_ok();
    numbers.into_iter().filter(is_open).collect()
}

/// The folders that this process was started with open. A path that goes up from one of them leads
/// out of a sandbox's root folder.
static FOLDERS: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Notes the folders that this process was started with open. No descriptor of this program may
/// exist yet.
pub(crate) fn find_folders() {
    let is_folder = |fd: &RawFd| {
        // SAFETY: as in `inherited`.
        let about = fstat(unsafe { BorrowedFd::borrow_raw(*fd) });
        about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Directory)
    };
    let found = inherited().into_iter().filter(is_folder);
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
}

/// Closes the folders that this process was started with open. A daemon closes all that it has
/// inherited instead.
pub(crate) fn close_folders() {
    for fd in std::mem::take(&mut *FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)) {
        // SAFETY: the descriptor was open before any of this program's, and nothing else owns it or
        // closes it: its number never belonged to one of this program's descriptors.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
