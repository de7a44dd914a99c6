//! The queue of requests for workers, and the condition of the keeper.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use underseal_device::{Finished, Io, ReplySender};

/// A request that may wait, and the receiver of its reply.
pub(super) struct QueuedRequest {
    pub(super) slot: u32,
    pub(super) io: Io,
    pub(super) to: Arc<ReplySender<Finished>>,
    /// Finished bytes of a long request for zeros.
    pub(super) done: u64,
}

/// Requests that no worker has taken, at most as many as the channels have slots.
#[derive(Default)]
pub(super) struct RequestQueue {
    inside: Mutex<Inside>,
    come: Condvar,
    keeper: Condvar,
}

#[derive(Default)]
struct Inside {
    waiting: VecDeque<QueuedRequest>,
    ended: bool,
    keeper_ended: bool,
    keeper_wanted: bool,
}

impl RequestQueue {
    /// Returns the request when no worker will take it any more.
    pub(super) fn push(&self, job: QueuedRequest) -> Option<QueuedRequest> {
        let mut inside = self.inside();
        if inside.ended {
            return Some(job);
        }
        inside.waiting.push_back(job);
        drop(inside);
        self.come.notify_one();
        None
    }

    /// Waits for the next request and takes it. `None`: no more will come.
    pub(super) fn next(&self) -> Option<QueuedRequest> {
        let mut inside = self.inside();
        loop {
            if let Some(job) = inside.waiting.pop_front() {
                return Some(job);
            }
            if inside.ended {
                return None;
            }
            inside = self.come.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the workers after the queued requests.
    pub(super) fn end(&self) {
        self.inside().ended = true;
        self.come.notify_all();
    }

    pub(super) fn end_keeper(&self) {
        self.inside().keeper_ended = true;
        self.keeper.notify_all();
    }

    /// Wakes the keeper.
    pub(super) fn rouse_keeper(&self) {
        let mut inside = self.inside();
        if !inside.keeper_wanted {
            inside.keeper_wanted = true;
            self.keeper.notify_all();
        }
    }

    /// Waits until the keeper is wanted, or for a time. False: the keeper has to end.
    pub(super) fn wait_as_keeper(&self, most: Duration) -> bool {
        let mut inside = self.inside();
        if !inside.keeper_wanted && !inside.keeper_ended {
            inside = self.keeper.wait_timeout(inside, most).unwrap_or_else(PoisonError::into_inner).0;
        }
        inside.keeper_wanted = false;
        !inside.keeper_ended
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
