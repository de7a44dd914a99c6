//! The two places where threads hand work to each other. `tests/hand_over.rs` tries every interleaving of them.
//!
//! ```text
//!   a queue's thread --push--> Injector --pop--> a worker
//!          ^                                        |
//!          +---- take ---- Mailbox <---- send ------+
//! ```
//!
//! A worker sleeps in its injector. A queue's thread never does: it sleeps in its ring, and whoever sends to its mailbox
//! wakes it, if it sleeps.

use std::collections::VecDeque;
use std::mem;

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// What was sent to one thread that has other things to wait for.
pub(crate) struct Mailbox<T> {
    inside: Mutex<Inside<T>>,
    /// How many items there are: lets the owner look without the lock.
    count: AtomicUsize,
}

struct Inside<T> {
    items: VecDeque<T>,
    /// The owner sleeps, or is about to.
    sleeping: bool,
}

impl<T> Mailbox<T> {
    /// With room for so many before it has to grow.
    pub(crate) fn new(room: usize) -> Self {
        let inside = Inside { items: VecDeque::with_capacity(room), sleeping: false };
        Self { inside: Mutex::new(inside), count: AtomicUsize::new(0) }
    }

    /// Puts something in. True: the owner sleeps and the caller has to wake it.
    #[must_use]
    pub(crate) fn send(&self, item: T) -> bool {
        let mut inside = lock(&self.inside);
        inside.items.push_back(item);
        self.count.store(inside.items.len(), Ordering::Release);
        mem::take(&mut inside.sleeping)
    }

    /// Lets the owner look around. True: it sleeps and the caller has to wake it.
    #[must_use]
    pub(crate) fn rouse(&self) -> bool {
        mem::take(&mut lock(&self.inside).sleeping)
    }

    /// Takes everything out, in the order it came.
    pub(crate) fn take(&self, into: &mut VecDeque<T>) {
        if !self.has_items() {
            return;
        }
        let mut inside = lock(&self.inside);
        into.extend(inside.items.drain(..));
        self.count.store(0, Ordering::Release);
    }

    /// True when something is there.
    pub(crate) fn has_items(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Called by the owner before it sleeps. False: something is there, or `ready` says so; do not sleep. What comes
    /// from now on wakes it.
    pub(crate) fn may_sleep(&self, ready: impl FnOnce() -> bool) -> bool {
        let mut inside = lock(&self.inside);
        inside.sleeping = inside.items.is_empty() && !ready();
        inside.sleeping
    }

    /// Called by the owner when it has woken up.
    pub(crate) fn awake(&self) {
        lock(&self.inside).sleeping = false;
    }
}

/// Work that any of several threads takes.
pub(crate) struct Injector<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    /// Work that nobody has taken: lets threads look without the lock.
    waiting: AtomicUsize,
    /// Threads that have nothing to do.
    idle: AtomicUsize,
}

struct State<T> {
    items: VecDeque<T>,
    sleepers: usize,
    closed: bool,
}

impl<T> Injector<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State { items: VecDeque::new(), sleepers: 0, closed: false }),
            work: Condvar::new(),
            waiting: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
        }
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&self, more: usize) {
        lock(&self.state).items.reserve(more);
    }

    /// Puts work in, and wakes a thread for it.
    ///
    /// # Errors
    /// Gives it back when the injector is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        self.waiting.store(state.items.len(), Ordering::Release);
        let wake = state.sleepers > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }

    /// The next piece of work, as soon as there is one; none when the injector is closed and empty. `patience` is how
    /// often to look before sleeping.
    pub(crate) fn pop(&self, patience: impl Iterator) -> Option<T> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        for _ in patience {
            if self.waiting.load(Ordering::Acquire) > 0 {
                break;
            }
        }
        let mut state = lock(&self.state);
        let item = loop {
            if let Some(item) = state.items.pop_front() {
                self.waiting.store(state.items.len(), Ordering::Release);
                break Some(item);
            }
            if state.closed {
                break None;
            }
            state.sleepers += 1;
            state = self.work.wait(state).unwrap_or_else(|e| e.into_inner());
            state.sleepers -= 1;
        };
        self.idle.fetch_sub(1, Ordering::Relaxed);
        item
    }

    /// Takes back the newest work of the caller's that nobody has taken.
    pub(crate) fn take_back(&self, is_mine: impl Fn(&T) -> bool) -> Option<T> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let at = state.items.iter().rposition(is_mine)?;
        let item = state.items.remove(at);
        self.waiting.store(state.items.len(), Ordering::Release);
        item
    }

    /// Threads that have nothing to do and for which no work waits.
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed).saturating_sub(self.waiting.load(Ordering::Relaxed))
    }

    /// Work that nobody has taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets the threads end when the work is done; no more is taken.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
    }
}

/// A thread that panicked did so outside of the lock's few lines.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
