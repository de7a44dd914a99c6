//! A ring that comes to rest, so that another process may go on with it.
//!
//! From then on nothing of it is touched here: neither what the driver reads of it, nor the count of its kicks. A process that
//! goes on with it takes it up as it was laid down, with its next available head; so does this one.

use std::sync::mpsc::SyncSender;

use super::Worker;
use crate::vhost_user::running::Rested;

/// How far a ring is on its way to rest.
pub(super) enum Rest {
    /// It serves.
    No,
    /// It takes no more, and answers what it has taken. Who waits for that.
    Coming(SyncSender<Rested>),
    /// All that was taken is answered.
    LaidDown,
}

impl Worker {
    /// Whether nothing more is taken.
    pub(super) fn rests(&self) -> bool {
        !matches!(self.rest, Rest::No)
    }

    /// Says so once all that was taken is answered, and the driver has the answers.
    pub(super) fn lie_down(&mut self) {
        let Rest::Coming(tell) = &self.rest else { return };
        let idle = self.tickets.is_empty() && self.stalled.is_none() && self.again.is_empty();
        if idle && (self.broken || self.ready.is_empty()) {
            // Who does not wait any more does not need to know.
            let _ = tell.send(Rested { next: self.ring.next(), broken: self.broken });
            self.rest = Rest::LaidDown;
        }
    }
}
