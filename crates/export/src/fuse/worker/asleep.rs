//! The sleep of a [crowd](super::super::crowd)'s thread: in the read of its descriptor.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use underseal_fuse::ReceivedRequest;

use super::super::protocol::caller;
use super::Worker;
use crate::Result;
use crate::export_loop::ExportLoop;

/// How many requests in a row must have been answered at once before a thread sleeps in reads: a
/// thread that waits for its lower device must sleep in its ring.
const STEADY: u32 = 16;

/// How many requests from another caller than the one before show that there are several clients.
const SEVERAL: u32 = 16;

/// How many requests in a row from one caller show that there is one client.
const ONE: u32 = 128;

/// A thread's part in the crowd.
pub(super) struct Sleeper {
    number: u16,
    /// The number of requests in a row that were answered at once, up to [`STEADY`].
    steady: u32,
    /// The number of requests in a row whose caller was that of the mount's request before.
    same: u32,
    /// The number of requests from another caller, since there was one client.
    others: u32,
    /// True when the descriptor blocks.
    blocks: bool,
}

impl Sleeper {
    pub(super) fn new(number: u16) -> Self {
        Self { number, steady: STEADY, same: 0, others: 0, blocks: false }
    }

    /// Notes whether a request was answered at once.
    pub(super) fn note(&mut self, at_once: bool) {
        self.steady = if at_once { (self.steady + 1).min(STEADY) } else { 0 };
    }

    /// Notes whether a request had the caller of the request before. Returns whether there are
    /// several clients, once that is certain.
    fn several(&mut self, same: bool) -> Option<bool> {
        (self.same, self.others) = if same { (self.same + 1, self.others) } else { (0, self.others + 1) };
        if self.others >= SEVERAL {
            self.others = 0;
            return Some(true);
        }
        (self.same >= ONE).then(|| {
            (self.same, self.others) = (0, 0);
            false
        })
    }
}

impl Worker {
    /// Reads the next request; waits for it if the thread may sleep in the read. Returns `None`
    /// when the queue has something to do first.
    pub(super) fn receive(&mut self) -> Result<Option<ReceivedRequest>> {
        let joins = self.may_join();
        if joins != self.sleeper.blocks {
            self.join(joins)?;
        }
        if self.sleeper.blocks {
            return self.receive_asleep();
        }
        let mut memory = [IoSliceMut::new(&mut self.head), IoSliceMut::new(&mut self.inbox)];
        Ok(Some(self.channel.receive(&mut memory)?))
    }

    /// True when the thread may sleep in the read, if the crowd has room.
    fn may_join(&self) -> bool {
        let is_idle = self.request_table.is_empty() && self.entries.is_none();
        is_idle && self.sleeper.steady == STEADY && self.shared.crowd.is_on()
    }

    /// True when requests wake other threads than this one, which may rest.
    pub(super) fn others_listen(&self) -> bool {
        let crowd = &self.shared.crowd;
        crowd.is_full() || self.shared.turns.somebody_listens() && !self.may_join()
    }

    /// Sleeps in the read, as [`receive`](Self::receive).
    fn receive_asleep(&mut self) -> Result<Option<ReceivedRequest>> {
        let Self { shared, channel, head, inbox, sleeper, .. } = self;
        shared.crowd.sleeps(sleeper.number);
        let goes_on = !shared.hold.is_held() && !shared.cut_off.load(Ordering::SeqCst);
        let mut memory = [IoSliceMut::new(head), IoSliceMut::new(inbox)];
        let read = || channel.receive(&mut memory);
        let received = if goes_on { self.queue.sleep_in(read).transpose() } else { Ok(None) };
        shared.crowd.wakes(sleeper.number);
        let received = received?;
        if received.is_none() {
            self.hear()?;
            self.sleeper.note(false);
        }
        self.row = 0;
        Ok(received)
    }

    /// Notes the caller of a request: several callers make a crowd, one ends it.
    pub(super) fn note_caller(&mut self) {
        let Self { shared, channel, head, sleeper, .. } = self;
        let Some(caller) = caller(head) else { return };
        let several = sleeper.several(shared.crowd.is_next(caller));
        // A crowd that is not full calls threads that rest since a thread of it listened.
        let calls = || shared.crowd.begins(channel) || sleeper.blocks && !shared.crowd.is_full();
        match several {
            Some(true) if calls() => shared.turns.call_all(),
            Some(false) => shared.crowd.ends(channel),
            _ => {}
        }
    }

    /// Joins the crowd, if it has room, or leaves it.
    fn join(&mut self, joins: bool) -> Result<()> {
        if joins && !self.shared.crowd.enter() {
            return Ok(());
        }
        if joins {
            // The read has no time limit after which a wait would free the memory. In a crowd a
            // thread keeps at most that of the one request that it answers at a time.
            self.queue.shrink();
        } else {
            self.shared.crowd.leave();
        }
        self.sleeper.blocks = joins;
        Ok(self.channel.set_blocking(joins)?)
    }

    /// Leaves the crowd, however the thread ends.
    pub(super) fn leave(&mut self) {
        self.shared.crowd.wakes(self.sleeper.number);
        if std::mem::take(&mut self.sleeper.blocks) {
            self.shared.crowd.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread's verdicts about requests, each of which is from the same caller or not.
    fn verdicts(requests: impl IntoIterator<Item = bool>) -> Vec<bool> {
        let mut sleeper = Sleeper::new(0);
        requests.into_iter().filter_map(|same| sleeper.several(same)).collect()
    }

    fn requests(same: u32, others: u32) -> impl Iterator<Item = bool> + Clone {
        (0..same).map(|_| true).chain((0..others).map(|_| false))
    }

    #[test]
    fn several_clients_are_those_that_take_turns() {
        assert!(verdicts(requests(0, SEVERAL - 1)).is_empty());
        assert_eq!(verdicts(requests(0, SEVERAL)), [true]);
        // Clients that send a few requests in a row.
        assert_eq!(verdicts((0..SEVERAL).flat_map(|_| requests(ONE - 1, 1))), [true]);
    }

    #[test]
    fn one_client_is_the_one_that_sends_all_requests() {
        assert!(verdicts(requests(ONE - 1, 0)).is_empty());
        assert_eq!(verdicts(requests(ONE, 0)), [false]);
        // A request of another client now and then makes two changes.
        let now_and_then = (0..SEVERAL).flat_map(|_| requests(ONE, 2));
        assert!(verdicts(now_and_then).iter().all(|several| !several));
    }

    #[test]
    fn a_thread_that_waited_for_its_device_sleeps_in_its_ring_for_some_requests() {
        let mut sleeper = Sleeper::new(0);
        sleeper.note(false);
        (0..STEADY - 1).for_each(|_| sleeper.note(true));
        assert_ne!(sleeper.steady, STEADY);
        sleeper.note(true);
        sleeper.note(true);
        assert_eq!(sleeper.steady, STEADY);
    }
}
