//! Events: descriptors that become readable (eventfd).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Makes an event that has not been raised.
pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Raises the event by `times`. The only failure is a counter near 2^64, which is readable all the
/// same.
pub(crate) fn raise(event: impl AsFd, times: u64) {
    let _ = rustix::io::write(event, &times.to_ne_bytes());
}

/// Resets the event, so that waits begin anew. Never blocks.
pub(crate) fn still(event: impl AsFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}
