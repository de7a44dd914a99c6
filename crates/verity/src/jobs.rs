//! Requests that wait for a worker.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use underseal_device::{Finished, Io, ReplySender};

/// A request, and the place of its answer.
pub(crate) struct WaitingRead {
    pub(crate) slot: u32,
    pub(crate) io: Io,
    pub(crate) to: Arc<ReplySender<Finished>>,
}

/// The requests that no worker has taken: at most as many as the channels have slots.
#[derive(Default)]
pub(crate) struct WaitingReads {
    waiting: Mutex<Waiting>,
    come: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<WaitingRead>,
    ended: bool,
}

impl WaitingReads {
    /// Adds a request. Returns it when the workers accept no more requests.
    pub(crate) fn push(&self, job: WaitingRead) -> Option<WaitingRead> {
        let mut waiting = self.waiting();
        if waiting.ended {
            return Some(job);
        }
        waiting.jobs.push_back(job);
        drop(waiting);
        self.come.notify_one();
        None
    }

    /// Waits for the next request. Returns `None` at the end.
    pub(crate) fn next(&self) -> Option<WaitingRead> {
        let mut waiting = self.waiting();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.ended {
                return None;
            }
            waiting = self.come.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Accepts no more requests.
    pub(crate) fn end(&self) {
        self.waiting().ended = true;
        self.come.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
