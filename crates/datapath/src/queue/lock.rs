//! The lock that all queues share: where a sector has to be written as a whole, or be read as one.

use std::ops::Range;

use super::{Job, Queue};
use crate::locks::{Claimant, Claimed};
use crate::post::{Letter, Post};
use crate::slot::Lock;
use std::sync::Arc;

/// A queue's request.
#[derive(Clone)]
pub(crate) struct Waiting {
    post: Arc<Post>,
    slot: u32,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot && Arc::ptr_eq(&self.post, &other.post)
    }
}

impl Claimant for Waiting {
    fn granted(&self) {
        self.post.send(Letter::Granted(self.slot));
    }
}

impl Queue {
    /// Begins, when its sectors are its own, or are shared with others that read.
    pub(super) fn take_lock(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (range, reads, unlocked) = (slot.start..slot.end, slot.job.reads(), slot.lock == Lock::None);
        let moves = match slot.job {
            Job::Discard => self.mapping.discards(),
            job => reads || job.changes(),
        };
        if let Some(locks) = self.mapping.locks()
            && unlocked
            && moves
        {
            let waiting = || Waiting { post: self.post.clone(), slot: index };
            let claimed = locks.claim(range, reads, waiting);
            self.slots.get(index).lock = if claimed == Claimed::Taken { Lock::Taken } else { Lock::Listed };
            if claimed == Claimed::Waits {
                return;
            }
        }
        self.begin(index);
    }

    /// Takes the lock for a write of whole sectors, if that needs nobody's turn.
    pub(super) fn lock_now(&self, range: Range<u64>) -> Option<Lock> {
        match self.mapping.locks() {
            None => Some(Lock::None),
            Some(locks) => locks.take(range).then_some(Lock::Taken),
        }
    }

    /// Such a write is over.
    pub(super) fn unlock_now(&self, range: Range<u64>, lock: Lock) {
        if let (Lock::Taken, Some(locks)) = (lock, self.mapping.locks()) {
            locks.give_back(range, false);
        }
    }

    /// A request does nothing with its sectors any more.
    pub(super) fn unlock(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (range, held) = (slot.start..slot.end, std::mem::replace(&mut slot.lock, Lock::None));
        let shared = slot.kind == super::Kind::Read;
        match (held, self.mapping.locks()) {
            (Lock::Taken, Some(locks)) => locks.give_back(range, shared),
            (Lock::Listed, Some(locks)) => {
                locks.leave(range, Waiting { post: self.post.clone(), slot: index })
            }
            _ => {}
        }
    }
}
