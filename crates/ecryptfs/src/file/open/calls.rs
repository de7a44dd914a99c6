//! Calls under way in an open file: long ones, and those that wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLockReadGuard, TryLockError};

use super::{FileState, OpenFile};

/// A call that counts, until it is dropped.
pub(in crate::file) struct CountedCall<'a>(&'a AtomicU64);

impl<'a> CountedCall<'a> {
    pub(super) fn counted_in(calls: &'a AtomicU64) -> Self {
        calls.fetch_add(1, Relaxed);
        Self(calls)
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl OpenFile {
    /// Locks the file's state for a reader.
    pub(in crate::file) fn reading(&self) -> RwLockReadGuard<'_, FileState> {
        match self.state.try_read() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let _waiting = CountedCall::counted_in(&self.waiting);
                self.state.read().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Returns true when a call waits for the state.
    pub(in crate::file) fn is_awaited(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}
