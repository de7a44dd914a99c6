//! A descriptor that becomes readable when something has happened (eventfd).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An event that has not happened.
///
/// # Errors
/// When the system has no descriptor left.
pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// It happens, so many times. The only failure is a counter near 2^64, which is readable all the
/// same.
pub(crate) fn raise(event: impl AsFd, times: u64) {
    let _ = rustix::io::write(event, &times.to_ne_bytes());
}

/// It has not happened: whoever waits does so for the next time. Never blocks.
pub(crate) fn still(event: impl AsFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}
