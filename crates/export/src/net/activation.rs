//! systemd's socket activation: listening sockets passed at start (sd_listen_fds(3)).
//!
//! `LISTEN_PID` is the process they are for, `LISTEN_FDS` their number, from descriptor 3 on;
//! `LISTEN_FDNAMES` names them. libnbd's tools start a server in this way, too: `nbdinfo [ server
//! ... ]`.

#![expect(unsafe_code, reason = "descriptors that the service manager passes on")]

use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::io::{FdFlags, fcntl_setfd};

use super::Listener;
use crate::{Error, ErrorKind, Result};

/// Returns the sockets that this process was started with, if any. Only the first call returns
/// them.
///
/// # Errors
/// [`ErrorKind::Listen`]: the environment is inconsistent, or a descriptor is no listening stream
/// socket.
pub fn activated() -> Result<Vec<Listener>> {
    let variable = |name| std::env::var(name).ok();
    let names = handed_over(
        std::process::id(),
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
    )?;
    if names.is_empty() || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    // All are wrapped before any is checked, so that after an error none stays open for a child
    // process.
    let sockets: Vec<_> = names.into_iter().zip(FIRST..).map(|(name, fd)| take(fd, name)).collect();
    sockets.into_iter().map(|taken| taken.and_then(|(fd, name)| Listener::adopt(fd, &name))).collect()
}

/// Descriptors come after the three standard ones.
const FIRST: RawFd = 3;
/// The limit of sockets for one server: more than any unit file has.
const MAX: usize = 256;
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns a name for each socket that is for the process `own`.
fn handed_over(own: u32, pid: Option<&str>, count: Option<&str>, names: Option<&str>) -> Result<Vec<String>> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(Vec::new()) };
    // The variables were set for an ancestor process.
    if pid.parse() != Ok(own) {
        return Ok(Vec::new());
    }
    let count: usize = count.parse().ok().filter(|count| *count <= MAX).ok_or_else(|| {
        Error::new(ErrorKind::Listen, format!("LISTEN_FDS is {count:?}, not a number of sockets up to {MAX}"))
    })?;
    let mut names = names.unwrap_or_default().split(':').map(Some).chain(std::iter::repeat(None));
    Ok((0..count)
        .map(|i| match names.next().flatten().filter(|name| !name.is_empty()) {
            Some(name) => format!("activated socket {:?}", name),
            None => format!("activated socket {i}"),
        })
        .collect())
}

fn take(fd: RawFd, name: String) -> Result<(OwnedFd, String)> {
    // SAFETY: the borrow lasts for this call, which fails cleanly on a number that is no open
    // descriptor.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(|error| {
        Error::new(ErrorKind::Listen, format!("{name}: descriptor {fd} is not open")).with_source(error)
    })?;
    // SAFETY: the descriptor is open, and LISTEN_PID says that it was opened for this process to
    // own. `TAKEN` ensures that it is wrapped once.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_says_which_sockets_are_ours() {
        let sockets = |pid, count, names| handed_over(7, pid, count, names).map(|names| names.len());
        assert_eq!(sockets(None, None, None).unwrap(), 0);
        assert_eq!(sockets(Some("7"), None, None).unwrap(), 0);
        assert_eq!(sockets(Some("8"), Some("2"), None).unwrap(), 0, "another process's");
        assert_eq!(sockets(Some("7"), Some("2"), None).unwrap(), 2);
        for nonsense in ["", "-1", "x", "257", "99999999999999999999"] {
            assert_eq!(sockets(Some("7"), Some(nonsense), None).unwrap_err().kind(), ErrorKind::Listen);
        }
        let names = handed_over(7, Some("7"), Some("3"), Some("disk:")).unwrap();
        assert_eq!(names, ["activated socket \"disk\"", "activated socket 1", "activated socket 2"]);
    }
}
