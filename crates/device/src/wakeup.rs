//! Wakes a thread that waits in its ring, from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that a ring watches, and that any thread makes readable.
pub struct Wakeup(OwnedFd);

impl Wakeup {
    /// Makes a wakeup that is not readable.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable, until [`heard`](Self::heard).
    pub fn ring(&self) {
        // The write fails only after 2^64 - 2 unheard ones, and the descriptor is readable then.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again, on the thread that woke.
    pub fn heard(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
