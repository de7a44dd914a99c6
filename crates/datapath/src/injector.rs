//! The queue of crypto work from which workers take, and in which they sleep. `tests/injector.rs`
//! tries every interleaving.
//!
//! ```text
//!   a queue's thread --push--> Injector --pop--> a worker
//!          ^                                        |
//!          +---- take ---- Mailbox <---- send ------+
//! ```

use std::collections::VecDeque;

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// Work that any of several threads takes.
pub(crate) struct Injector<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    /// Work that no thread has taken yet: lets threads look without the mutex.
    waiting: AtomicUsize,
    /// Threads without work.
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

    /// Reserves room for `more` items.
    pub(crate) fn reserve(&self, more: usize) {
        lock(&self.state).items.reserve(more);
    }

    /// Adds an item and wakes a thread for it. Returns the item when the injector is closed.
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

    /// Waits for the next item; returns `None` when the injector is closed and empty. `patience`
    /// bounds the number of looks before the thread sleeps.
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

    /// Takes back the newest of the caller's items that no thread has taken.
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

    /// The number of idle threads for which no work waits.
    pub(crate) fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed).saturating_sub(self.waiting.load(Ordering::Relaxed))
    }

    /// The number of items that no thread has taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets the threads end after the remaining work; new items are refused.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
    }
}

/// Poisoning is ignored: no thread panics within the few lines that hold the mutex.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
