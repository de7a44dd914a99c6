//! A queue's inbox: messages from other threads, and the wakeup of the queue's thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use underseal_device::{Mailbox, Wakeup};

use crate::stats::QueueStats;
use crate::workers::Task;

/// A message from another thread to a queue.
#[expect(clippy::large_enum_variant, reason = "nearly all are of that variant, and lie in slots made before")]
pub(crate) enum QueueMessage {
    /// A worker has finished a piece.
    Task(Task),
    /// The slot has its range lock now.
    Granted(u32),
    /// Another thread asks for the queue's oldest lower request.
    Look,
}

/// A function that wakes a queue's thread where it sleeps outside of the queue's ring.
pub(crate) type OutsideWakeup = Box<dyn Fn() + Send + Sync>;

/// The state that a queue's thread shares with other threads.
pub(crate) struct QueueInbox {
    mailbox: Mailbox<QueueMessage>,
    /// The wakeup that the queue's io_uring watches.
    wakeup: Wakeup,
    /// The second wakeup, of a thread that sleeps outside of the ring.
    outside: OnceLock<OutsideWakeup>,
    /// The last settings version under which the queue had settled.
    quiet_at: AtomicU32,
    looks: Mutex<WaitSnapshot>,
    pub(crate) stats: QueueStats,
}

/// The queue's answer to the last question for its oldest lower request.
#[derive(Default)]
struct WaitSnapshot {
    /// The queue was asked and has not answered yet.
    asked: bool,
    oldest: Option<LowerRequest>,
}

/// A request in a lower device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LowerRequest {
    pub(crate) since: Instant,
    pub(crate) device: usize,
}

impl QueueInbox {
    pub(crate) fn new(room: usize) -> std::io::Result<Self> {
        Ok(Self {
            mailbox: Mailbox::new(room),
            wakeup: Wakeup::new()?,
            outside: OnceLock::new(),
            quiet_at: AtomicU32::new(0),
            looks: Mutex::default(),
            stats: QueueStats::new(),
        })
    }

    /// Sends a message, from any thread.
    pub(crate) fn send(&self, message: QueueMessage) {
        if self.mailbox.send(message) {
            self.wake();
        }
    }

    /// Makes the queue check the settings.
    pub(crate) fn rouse(&self) {
        if self.mailbox.rouse() {
            self.wake();
        }
    }

    /// Sets the second wakeup, unless there is one.
    pub(crate) fn set_outside_wakeup(&self, wake: OutsideWakeup) {
        let _ = self.outside.set(wake);
    }

    fn wake(&self) {
        self.wakeup.ring();
        if let Some(wake) = self.outside.get() {
            wake();
        }
    }

    /// The descriptor that the queue's ring watches.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Resets the wakeup.
    pub(crate) fn heard(&self) {
        self.wakeup.heard();
    }

    pub(crate) fn take(&self, into: &mut VecDeque<QueueMessage>) {
        self.mailbox.take(into);
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.mailbox.has_items()
    }

    pub(crate) fn may_sleep(&self, ready: impl FnOnce() -> bool) -> bool {
        self.mailbox.may_sleep(ready)
    }

    pub(crate) fn awake(&self) {
        self.mailbox.awake();
    }

    /// Asks the queue for its oldest lower request. Askers share one message until the queue
    /// answers.
    pub(crate) fn ask(&self) {
        if !std::mem::replace(&mut self.looks().asked, true) {
            self.send(QueueMessage::Look);
        }
    }

    /// Stores the queue's answer.
    pub(crate) fn has_looked(&self, oldest: Option<LowerRequest>) {
        *self.looks() = WaitSnapshot { asked: false, oldest };
    }

    /// The queue's answer. `None`: it was asked and has not answered yet.
    pub(crate) fn oldest(&self) -> Option<Option<LowerRequest>> {
        let looks = self.looks();
        (!looks.asked).then_some(looks.oldest)
    }

    fn looks(&self) -> MutexGuard<'_, WaitSnapshot> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_quiet(&self, version: u32) {
        self.quiet_at.store(version, Ordering::Release);
    }

    pub(crate) fn quiet_at(&self) -> u32 {
        self.quiet_at.load(Ordering::Acquire)
    }
}
