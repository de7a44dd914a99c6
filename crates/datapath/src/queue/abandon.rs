//! The end of requests whose client is gone.

use super::Queue;
use crate::{Error, ErrorKind};

impl Queue {
    /// Gives up the requests in flight, whose results are not needed any more: those that have not
    /// begun fail, and the others fail when the lower device has their piece in progress.
    /// Zeros and discards may be gigabytes long, and what the next client writes must not become
    /// zeros later. Requests that come later fail, too.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
        // A suspended volume does nothing for a request that fails when it begins.
        for _ in 0..self.paused.len() {
            if let Some(index) = self.paused.pop_front() {
                self.admit_index(index);
            }
        }
        self.settle();
    }
}

/// The error of a request that is given up.
pub(super) fn abandoned() -> Error {
    Error::new(ErrorKind::Abandoned, "the client that sent the request is gone")
}
