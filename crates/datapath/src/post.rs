//! Where others reach a queue: what they send it, and what wakes its thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use underseal_device::{Mailbox, Wakeup};

use crate::stats::QueueStats;
use crate::workers::Task;

/// What comes to a queue from other threads.
#[expect(clippy::large_enum_variant, reason = "nearly all are of that variant, and lie in slots made before")]
pub(crate) enum QueueMessage {
    /// A worker is done with a piece.
    Task(Task),
    /// The slot's write may touch its sectors now.
    Granted(u32),
    /// Somebody wants to know what the queue waits for.
    Look,
}

/// One queue's address. Everything that is shared between its thread and others.
pub(crate) struct QueueInbox {
    mailbox: Mailbox<QueueMessage>,
    /// Rings in the queue's io_uring.
    bell: Wakeup,
    /// The last version of the settings under which the queue was seen with nothing in flight.
    quiet_at: AtomicU32,
    looks: Mutex<WaitSnapshot>,
    pub(crate) stats: QueueStats,
}

/// What the queue saw when it was last asked what it waits for.
#[derive(Default)]
struct WaitSnapshot {
    /// It was asked, and has not looked yet.
    asked: bool,
    oldest: Option<LowerRequest>,
}

/// A request that a lower device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LowerRequest {
    pub(crate) since: Instant,
    pub(crate) device: usize,
}

impl QueueInbox {
    pub(crate) fn new(room: usize) -> std::io::Result<Self> {
        Ok(Self {
            mailbox: Mailbox::new(room),
            bell: Wakeup::new()?,
            quiet_at: AtomicU32::new(0),
            looks: Mutex::default(),
            stats: QueueStats::new(),
        })
    }

    /// Sends from any thread.
    pub(crate) fn send(&self, letter: QueueMessage) {
        if self.mailbox.send(letter) {
            self.bell.ring();
        }
    }

    /// Makes the queue look at the settings.
    pub(crate) fn rouse(&self) {
        if self.mailbox.rouse() {
            self.bell.ring();
        }
    }

    /// What the queue's ring watches.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell was heard.
    pub(crate) fn heard(&self) {
        self.bell.heard();
    }

    pub(crate) fn take(&self, into: &mut VecDeque<QueueMessage>) {
        self.mailbox.take(into);
    }

    pub(crate) fn has_letters(&self) -> bool {
        self.mailbox.has_items()
    }

    pub(crate) fn may_sleep(&self, ready: impl FnOnce() -> bool) -> bool {
        self.mailbox.may_sleep(ready)
    }

    pub(crate) fn awake(&self) {
        self.mailbox.awake();
    }

    /// Asks the queue what it waits for. One letter is enough for all who ask before it comes to
    /// it.
    pub(crate) fn ask(&self) {
        if !std::mem::replace(&mut self.looks().asked, true) {
            self.send(QueueMessage::Look);
        }
    }

    /// The queue has looked: its request that a lower device has had longest.
    pub(crate) fn has_looked(&self, oldest: Option<LowerRequest>) {
        *self.looks() = WaitSnapshot { asked: false, oldest };
    }

    /// What it saw. None: it was asked, and has not looked yet.
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
