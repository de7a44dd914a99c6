//! Messages for a thread that also waits for other events. `tests/mailbox.rs` tries every
//! interleaving.
//!
//! The owner never sleeps here, only in its ring; a sender wakes it, if it sleeps, with a
//! [`Wakeup`](crate::Wakeup) that the ring watches.

use std::collections::VecDeque;
use std::mem;

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// The messages to one thread, which also waits for other events.
pub struct Mailbox<T> {
    inside: Mutex<MailboxState<T>>,
    /// The number of items: lets the owner look without the mutex.
    count: AtomicUsize,
}

struct MailboxState<T> {
    items: VecDeque<T>,
    /// The owner sleeps, or is about to.
    sleeping: bool,
}

impl<T> Mailbox<T> {
    /// Makes a mailbox with room for `room` items before it grows.
    pub fn new(room: usize) -> Self {
        let inside = MailboxState { items: VecDeque::with_capacity(room), sleeping: false };
        Self { inside: Mutex::new(inside), count: AtomicUsize::new(0) }
    }

    /// Adds an item. True: the owner sleeps and the caller has to wake it.
    #[must_use]
    pub fn send(&self, item: T) -> bool {
        let mut inside = lock(&self.inside);
        inside.items.push_back(item);
        self.count.store(inside.items.len(), Ordering::Release);
        mem::take(&mut inside.sleeping)
    }

    /// Lets the owner look around without an item. True: the owner sleeps and the caller has to
    /// wake it.
    #[must_use]
    pub fn rouse(&self) -> bool {
        mem::take(&mut lock(&self.inside).sleeping)
    }

    /// Takes all items, in order.
    pub fn take(&self, into: &mut VecDeque<T>) {
        if !self.has_items() {
            return;
        }
        let mut inside = lock(&self.inside);
        into.extend(inside.items.drain(..));
        self.count.store(0, Ordering::Release);
    }

    /// True when items are waiting.
    pub fn has_items(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Called by the owner before it sleeps. False: items are waiting, or `ready` is true, and the
    /// owner must not sleep. After true, the next sender wakes the owner.
    pub fn may_sleep(&self, ready: impl FnOnce() -> bool) -> bool {
        let mut inside = lock(&self.inside);
        inside.sleeping = inside.items.is_empty() && !ready();
        inside.sleeping
    }

    /// Called by the owner when it has woken up.
    pub fn awake(&self) {
        lock(&self.inside).sleeping = false;
    }
}

/// Poisoning is ignored: no thread panics within the few lines that hold the mutex.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
