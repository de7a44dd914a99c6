//! Where threads leave what is for one that has other things to wait for. `tests/mailbox.rs` tries
//! every interleaving.
//!
//! Its owner never sleeps here but in its ring, and whoever sends wakes it, if it sleeps: with a
//! [`Wakeup`](crate::Wakeup) that the ring watches.

use std::collections::VecDeque;
use std::mem;

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// What was sent to one thread that has other things to wait for.
pub struct Mailbox<T> {
    inside: Mutex<MailboxState<T>>,
    /// How many items there are: lets the owner look without the lock.
    count: AtomicUsize,
}

struct MailboxState<T> {
    items: VecDeque<T>,
    /// The owner sleeps, or is about to.
    sleeping: bool,
}

impl<T> Mailbox<T> {
    /// With room for so many before it has to grow.
    pub fn new(room: usize) -> Self {
        let inside = MailboxState { items: VecDeque::with_capacity(room), sleeping: false };
        Self { inside: Mutex::new(inside), count: AtomicUsize::new(0) }
    }

    /// Puts something in. True: the owner sleeps and the caller has to wake it.
    #[must_use]
    pub fn send(&self, item: T) -> bool {
        let mut inside = lock(&self.inside);
        inside.items.push_back(item);
        self.count.store(inside.items.len(), Ordering::Release);
        mem::take(&mut inside.sleeping)
    }

    /// Lets the owner look around. True: it sleeps and the caller has to wake it.
    #[must_use]
    pub fn rouse(&self) -> bool {
        mem::take(&mut lock(&self.inside).sleeping)
    }

    /// Takes everything out, in the order it came.
    pub fn take(&self, into: &mut VecDeque<T>) {
        if !self.has_items() {
            return;
        }
        let mut inside = lock(&self.inside);
        into.extend(inside.items.drain(..));
        self.count.store(0, Ordering::Release);
    }

    /// True when something is there.
    pub fn has_items(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Called by the owner before it sleeps. False: something is there, or `ready` says so; do not
    /// sleep. What comes from now on wakes it.
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

/// A thread that panicked did so outside of the lock's few lines.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
