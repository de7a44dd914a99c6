//! Writes that a server acknowledged and may have lost: the head of [`nbd`](super) says what is made of them.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What a device knows of its server's memory, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Changes that were acknowledged without being durable.
    acknowledged: AtomicU64,
    /// Of those, how many a flush has covered, or a loss.
    settled: AtomicU64,
    /// How often acknowledged changes may have been lost.
    count: AtomicU64,
    /// Of those, how many somebody was told of.
    told: AtomicU64,
}

impl Losses {
    /// A change was acknowledged.
    pub(super) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, SeqCst);
    }

    /// What a flush that is asked for now covers.
    pub(super) fn mark(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// A flush that covers `mark` changes has succeeded.
    pub(super) fn flushed(&self, mark: u64) {
        self.settled.fetch_max(mark, SeqCst);
    }

    /// The server may have ended. True when it may have lost something.
    pub(super) fn note(&self) -> bool {
        let mark = self.mark();
        let lost = self.settled.fetch_max(mark, SeqCst) < mark;
        if lost {
            self.count.fetch_add(1, SeqCst);
        }
        lost
    }

    /// What a new channel has not been told of, it will be.
    pub(super) fn told(&self) -> u64 {
        self.told.load(SeqCst)
    }

    /// Whether a channel that was told of `seen` losses must hear of another one; it has then.
    pub(super) fn tell(&self, seen: &mut u64) -> bool {
        let count = self.count.load(SeqCst);
        let news = *seen < count;
        if news {
            *seen = count;
            self.told.fetch_max(count, SeqCst);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_hears_of_a_loss_once() {
        let losses = Losses::default();
        let (mut a, mut b) = (losses.told(), losses.told());
        assert!(!losses.note(), "nothing was written");
        losses.acknowledge();
        losses.flushed(losses.mark());
        assert!(!losses.note(), "all was flushed");
        losses.acknowledge();
        assert!(losses.note());
        assert!(!losses.note(), "the same loss, seen by another connection");
        let mut late = losses.told();
        assert!(losses.tell(&mut late), "nobody was told yet");
        assert!(losses.tell(&mut a) && !losses.tell(&mut a) && losses.tell(&mut b));
        let mut later = losses.told();
        assert!(!losses.tell(&mut later), "that was before its time");
    }
}
