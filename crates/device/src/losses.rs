//! Writes that were acknowledged and may be lost.
//!
//! # A flush that failed
//! Linux tells of bytes that it could not write back once on each open file, and takes them for written from then on: they are read
//! from its memory as if all were well, and the next flush succeeds without them. So each channel of a file has an open file of its
//! own, else the first to flush would be told and nobody else. But a client that tries the same flush again (QEMU does, when it
//! goes on after an error) would still be told that all is there. So once a flush has failed, **every** flush fails, on every
//! channel, until the device is opened again: then whoever uses it begins anew, and looks. QEMU keeps it so for its own
//! files. A durable write still speaks for itself only.
//!
//! # A server that went away
//! What it had acknowledged and not flushed is told of once on each channel: the head of [`nbd`](crate::nbd) says why.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use rustix::io::Errno;

/// What a device knows of acknowledged writes, over all its channels.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// The error number of the first flush that failed; 0 before.
    failed: AtomicI32,
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
    /// A flush has failed. True the first time.
    pub(crate) fn fail(&self, errno: Errno) -> bool {
        self.failed.compare_exchange(0, errno.raw_os_error(), SeqCst, SeqCst).is_ok()
    }

    /// Why no flush can succeed any more.
    pub(crate) fn failed(&self) -> Option<Errno> {
        match self.failed.load(SeqCst) {
            0 => None,
            errno => Some(Errno::from_raw_os_error(errno)),
        }
    }

    /// A change was acknowledged.
    pub(crate) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, SeqCst);
    }

    /// What a flush that is asked for now covers.
    pub(crate) fn mark(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// A flush that covers `mark` changes has succeeded.
    pub(crate) fn flushed(&self, mark: u64) {
        self.settled.fetch_max(mark, SeqCst);
    }

    /// The server may have ended. True when it may have lost something.
    pub(crate) fn note(&self) -> bool {
        let mark = self.mark();
        let lost = self.settled.fetch_max(mark, SeqCst) < mark;
        if lost {
            self.count.fetch_add(1, SeqCst);
        }
        lost
    }

    /// What a new channel has not been told of, it will be.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(SeqCst)
    }

    /// Whether a channel that was told of `seen` losses must hear of another one; it has then.
    pub(crate) fn tell(&self, seen: &mut u64) -> bool {
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
    fn a_flush_that_failed_is_not_made_good() {
        let losses = Losses::default();
        assert_eq!(losses.failed(), None);
        assert!(losses.fail(Errno::IO));
        assert!(!losses.fail(Errno::NOSPC), "it is known already");
        losses.flushed(losses.mark());
        assert_eq!(losses.failed(), Some(Errno::IO));
    }

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
