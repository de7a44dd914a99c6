//! The turns of a mount's idle threads: which of them listens.
//!
//! For each request, the kernel wakes every thread whose ring watches the mount. So only one of the
//! idle threads listens; the others rest until more requests arrive than one thread can handle.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};

use crate::event::{raise, still};

/// The turns, shared by the threads of one mount.
pub(super) struct Turns {
    listening: AtomicUsize,
    resting: AtomicUsize,
    /// A semaphore: its count is the number of resting threads to wake.
    wakeup: OwnedFd,
}

impl Turns {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self { listening: AtomicUsize::new(0), resting: AtomicUsize::new(0), wakeup: eventfd(0, flags)? })
    }

    /// Records that the calling thread's ring watches the mount.
    pub(super) fn listens(&self) {
        self.listening.fetch_add(1, SeqCst);
    }

    /// Records that the calling thread's ring no longer watches the mount.
    pub(super) fn has_heard(&self) {
        self.listening.fetch_sub(1, SeqCst);
    }

    pub(super) fn somebody_listens(&self) -> bool {
        self.listening.load(SeqCst) > 0
    }

    /// Records that the calling thread's ring watches the semaphore. The thread then checks that
    /// another thread still listens.
    pub(super) fn rests(&self) {
        self.resting.fetch_add(1, SeqCst);
    }

    /// Records that the semaphore has woken the calling thread.
    pub(super) fn is_up(&self) {
        // Another thread may have taken the count; the calling thread is awake all the same.
        still(&self.wakeup);
        self.resting.fetch_sub(1, SeqCst);
    }

    /// Wakes a resting thread, if no thread listens.
    pub(super) fn call(&self) {
        if !self.somebody_listens() && self.resting.load(SeqCst) > 0 {
            self.ring(1);
        }
    }

    /// Wakes all resting threads: the volume is unmounted, or a thread has ended.
    pub(super) fn call_all(&self) {
        self.ring(self.resting.load(SeqCst) as u64);
    }

    fn ring(&self, times: u64) {
        if times > 0 {
            raise(&self.wakeup, times);
        }
    }
}

impl AsFd for Turns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
