//! The range lock in a queue: for sectors that must be read and written as a whole, or that a range
//! mover moves.

use std::ops::Range;

use super::Queue;
use crate::locks::LockOutcome;
use crate::mover::LockWaiter;
use crate::slot::{LockState, RequestClass, SlotOperation};

impl Queue {
    /// Locks a request's range, shared for reads, and begins the request once it holds the lock.
    pub(super) fn take_lock(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let moves = match slot.op {
            SlotOperation::Discard => self.mapping.discards(),
            op => op.reads() || op.changes(),
        };
        if moves && slot.lock == LockState::None && self.settings_versions.locks() {
            let waiting = || LockWaiter::Request(self.inbox.clone(), index);
            let claimed = self.mapping.locks().claim(slot.start..slot.end, slot.op.reads(), waiting);
            slot.lock = if claimed == LockOutcome::Taken { LockState::Taken } else { LockState::Listed };
            if claimed == LockOutcome::Waits {
                return;
            }
            // The previous holder may have been a range mover, which changes the settings.
            self.renew();
        }
        self.begin(index);
    }

    /// Locks whole sectors for a write on the fast path; `None`: another request has one of them.
    pub(super) fn lock_now(&mut self, range: &Range<u64>) -> Option<LockState> {
        if !self.settings_versions.locks() {
            return Some(LockState::None);
        }
        let taken = self.mapping.locks().take(range.clone(), false);
        self.renew();
        taken.then_some(LockState::Taken)
    }

    /// Releases a lock from [`lock_now`](Self::lock_now).
    pub(super) fn unlock_now(&self, range: Range<u64>, lock: LockState) {
        if lock == LockState::Taken {
            self.mapping.locks().give_back(range, false);
        }
    }

    /// Releases the lock of a request that is done with its sectors.
    pub(super) fn unlock(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (range, shared) = (slot.start..slot.end, slot.class == RequestClass::Read);
        match std::mem::replace(&mut slot.lock, LockState::None) {
            LockState::None => {}
            LockState::Taken => self.mapping.locks().give_back(range, shared),
            LockState::Listed => {
                self.mapping.locks().leave(range, LockWaiter::Request(self.inbox.clone(), index));
            }
        }
    }
}
