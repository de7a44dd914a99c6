//! A mark by which other processes recognize a sandboxed server.
//!
//! A lowered hard limit stays lowered: raising it takes `CAP_SYS_RESOURCE`, and the filters refuse
//! that. Servers use no POSIX message queues, so the limit of the bytes in these is the mark. Linux
//! shows a process's limits to every process of the same user and group, in a sandbox or not, with
//! or without /proc.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

const MARK: Rlimit = Rlimit { current: Some(0), maximum: Some(0) };

/// Marks this process.
pub(crate) fn set() -> rustix::io::Result<()> {
    setrlimit(Resource::Msgqueue, MARK)
}

/// Returns true when the process with this number is a server in its sandbox, according to the
/// kernel.
///
/// # Errors
/// When the kernel does not answer: the process has ended, is another user's, or is outside of this
/// process's PID namespace.
#[expect(unsafe_code, reason = "rustix reads limits of other processes only by setting them")]
pub fn is_inside(pid: i32) -> io::Result<bool> {
    // The number 0 stands for the calling process.
    if pid <= 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: no limit is set, and the structure for the answer is there.
    match unsafe { libc::prlimit(pid, libc::RLIMIT_MSGQUEUE, std::ptr::null(), &raw mut limit) } {
        0 => Ok((limit.rlim_cur, limit.rlim_max) == (0, 0)),
        _ => Err(io::Error::last_os_error()),
    }
}
