//! Wakes a thread that waits in its ring for what another thread sees end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that a ring watches, and that any thread makes readable.
pub struct Wakeup(OwnedFd);

impl Wakeup {
    /// One that does not ring.
    ///
    /// # Errors
    /// When the system has no descriptor for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings until it is heard.
    pub fn ring(&self) {
        // It fails only when 2^64 - 2 rings were not heard, so it is ringing.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Its owner has woken up.
    pub fn heard(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
