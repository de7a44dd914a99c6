//! Who of the idle threads listens.
//!
//! The kernel wakes every thread whose ring watches the mount, for each request. So of the idle
//! ones a single one listens; the others rest until more requests are there than it can see to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};

use crate::event::{raise, still};

/// Shared by the threads of one mount.
pub(super) struct Turns {
    listening: AtomicUsize,
    resting: AtomicUsize,
    /// Readable as often as a resting thread is wanted.
    bell: OwnedFd,
}

impl Turns {
    /// # Errors
    /// When the system has no descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self { listening: AtomicUsize::new(0), resting: AtomicUsize::new(0), bell: eventfd(0, flags)? })
    }

    /// The calling thread's ring watches the mount from now on.
    pub(super) fn listens(&self) {
        self.listening.fetch_add(1, SeqCst);
    }

    /// It does so no more.
    pub(super) fn has_heard(&self) {
        self.listening.fetch_sub(1, SeqCst);
    }

    pub(super) fn somebody_listens(&self) -> bool {
        self.listening.load(SeqCst) > 0
    }

    /// The calling thread's ring watches the bell from now on. It looks after this whether somebody
    /// still listens.
    pub(super) fn rests(&self) {
        self.resting.fetch_add(1, SeqCst);
    }

    /// The bell has rung for it.
    pub(super) fn is_up(&self) {
        // Another may have been quicker; this one is up all the same.
        still(&self.bell);
        self.resting.fetch_sub(1, SeqCst);
    }

    /// Wakes a resting thread, if nobody listens.
    pub(super) fn call(&self) {
        if !self.somebody_listens() && self.resting.load(SeqCst) > 0 {
            self.ring(1);
        }
    }

    /// Wakes all: the mount is gone, or a thread.
    pub(super) fn call_all(&self) {
        self.ring(self.resting.load(SeqCst) as u64);
    }

    fn ring(&self, times: u64) {
        raise(&self.bell, times);
    }
}

impl AsFd for Turns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
