//! Descriptors that programs inherit.

#![expect(unsafe_code, reason = "system calls between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

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
