//! Writes that were acknowledged and may be lost: the one place for every device that can lose
//! them.
//!
//! ```text
//!   queue -- Sticky -- the device's channel      says when a flush fails (`fail`), or a server goes away (`note`)
//!               \           /
//!                 Losses                         one a device
//! ```
//!
//! Devices on other devices hold channels that are [`Sticky`] already, and pass on what those say.
//! Memory loses nothing.
//!
//! # A flush that failed
//! Linux tells of bytes that it could not write back once on each open file, and takes them for
//! written from then on: they are read from its memory as if all were well, and the next flush
//! succeeds without them. So each channel of a file has an open file of its own, else the first to
//! flush would be told and no other. But a client that tries the same flush again (QEMU does, when
//! it goes on after an error) would still be told that all is there. So once a flush has failed,
//! **every** flush fails, on every channel, until the device is opened again: then its users begin
//! anew, and look. QEMU keeps it so for its own files. A durable write still speaks for itself
//! only.
//!
//! An open file that is younger than the error is not told of it when another one was:
//! `cryptsetup config` on a served image, or any fsync of it, would hide the loss from a client
//! that connects afterwards. So each flush of a file asks the file that was opened first, too
//! (`file/write_back.rs`), and the syncs of headers and reencryptions on it come here
//! (`FileDevice::sync`).
//!
//! # A server that went away
//! The loss of writes that it had acknowledged and not flushed fails the next flush of each channel
//! once: the head of [`nbd`](crate::nbd) says why. A channel that is made later is told, too, until
//! a channel that was told has flushed again: that client has heard of the loss and goes on. A
//! channel that flushes once and is gone (`suspend`, a hand-over, a snapshot) takes nothing from
//! later ones. With several clients, one that connects again only after another has gone on is not
//! told.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use rustix::io::Errno;

use crate::{Channel, Error, ErrorKind, Finished, Immediate, Io, Result, Ring, RingToken, Started};

/// What a device knows of acknowledged writes, over all its channels.
#[derive(Debug, Default)]
pub(crate) struct FlushLosses {
    /// The device's.
    name: String,
    /// The error number of the first flush that failed; 0 before.
    failed: AtomicI32,
    /// Changes that were acknowledged without being durable.
    acknowledged: AtomicU64,
    /// Of those, how many a flush has covered, or a loss.
    settled: AtomicU64,
    /// How often acknowledged changes may have been lost.
    count: AtomicU64,
    /// Of those, how many a channel was told of that has flushed again since.
    told: AtomicU64,
}

impl FlushLosses {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// A flush has failed: one that was asked for, or that of a durable write.
    pub(crate) fn fail(&self, errno: Errno) {
        if self.failed.compare_exchange(0, errno.raw_os_error(), SeqCst, SeqCst).is_ok() {
            log::error!(
                "{}: a flush failed ({errno}): acknowledged writes may be lost; every flush fails until the volume is opened again",
                self.name
            );
        }
    }

    /// An error, when no flush can succeed any more.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.load(SeqCst) {
            0 => Ok(()),
            errno => Err(unflushed(Errno::from_raw_os_error(errno))),
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

    /// The losses that a new channel is not told of.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(SeqCst)
    }

    /// Whether a channel that was told of `seen` losses must hear of another one; it has then.
    pub(crate) fn tell(&self, seen: &mut u64) -> bool {
        let count = self.count.load(SeqCst);
        let news = *seen < count;
        if news {
            *seen = count;
        } else {
            self.told.fetch_max(*seen, SeqCst);
        }
        news
    }
}

/// The error of a flush that failed, or that comes after one.
pub(crate) fn unflushed(errno: Errno) -> Error {
    Error::new(ErrorKind::Flush, "flush failed: acknowledged writes may be lost").with_source(errno)
}

/// A channel on which every flush fails once one of its device has failed.
pub(crate) struct Sticky<C> {
    inner: C,
    losses: Arc<FlushLosses>,
    /// The slots of flushes in flight.
    flushes: Vec<u32>,
}

impl<C> Sticky<C> {
    pub(crate) fn new(inner: C, losses: Arc<FlushLosses>) -> Self {
        Self { inner, losses, flushes: Vec::new() }
    }

    /// A request is over. Where it is a flush that succeeded, another channel's may have failed
    /// meanwhile, and taken the error.
    fn over(&mut self, done: &mut Finished) {
        if let Some(at) = self.flushes.iter().position(|&slot| slot == done.slot) {
            self.flushes.swap_remove(at);
            if done.result.is_ok() {
                done.result = self.losses.check();
            }
        }
    }
}

impl<C: Channel> Channel for Sticky<C> {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.inner.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.inner.write_now(offset, data)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        self.inner.read_tagged_now(offset, data, tags)
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        self.inner.write_tagged_now(offset, data, tags)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        if let Io::Flush = io {
            let result = self.losses.check();
            if result.is_err() {
                return Started::Finished(Finished::bare(slot, result));
            }
            self.flushes.push(slot);
        }
        let mut started = self.inner.start(ring, slot, io);
        if let Started::Finished(done) = &mut started {
            self.over(done);
        }
        started
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let mut done = self.inner.finish(ring, token, result)?;
        self.over(&mut done);
        Some(done)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let before = over.len();
        self.inner.woken(ring, token, result, over);
        over[before..].iter_mut().for_each(|done| self.over(done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, RamDevice};

    #[test]
    fn a_flush_that_failed_is_not_made_good() {
        let losses = FlushLosses::default();
        losses.check().unwrap();
        losses.fail(Errno::IO);
        losses.fail(Errno::NOSPC);
        losses.flushed(losses.mark());
        assert_eq!(losses.check().unwrap_err().errno(), Some(Errno::IO.raw_os_error()), "the first one's");
    }

    /// Answers a flush when it is woken, and other requests at once.
    struct Later(Box<dyn Channel>, Vec<u32>);

    impl Channel for Later {
        fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
            self.0.read_now(offset, data)
        }

        fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
            self.0.write_now(offset, data)
        }

        fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
            match io {
                Io::Flush => {
                    self.1.push(slot);
                    Started::Pending
                }
                io => self.0.start(ring, slot, io),
            }
        }

        fn finish(&mut self, _: &mut Ring, _: RingToken, _: i32) -> Option<Finished> {
            None
        }

        fn woken(&mut self, _: &mut Ring, _: RingToken, _: i32, over: &mut Vec<Finished>) {
            over.extend(self.1.drain(..).map(|slot| Finished::bare(slot, Ok(()))));
        }
    }

    #[test]
    fn every_channel_fails_to_flush_from_then_on_and_does_all_else() {
        let (device, losses) = (RamDevice::new(1 << 20), Arc::new(FlushLosses::default()));
        let mut ring = Ring::new(2).unwrap();
        let [mut a, mut b] =
            [(); 2].map(|()| Sticky::new(Later(device.channel(4).unwrap(), Vec::new()), losses.clone()));
        let wake = |channel: &mut Sticky<Later>, ring: &mut Ring| {
            let mut over = Vec::new();
            channel.woken(ring, RingToken::channel(0), 0, &mut over);
            over.into_iter().map(|done| (done.slot, done.result.is_ok())).collect::<Vec<_>>()
        };
        assert!(matches!(a.start(&mut ring, 1, Io::Flush), Started::Pending));
        assert_eq!(wake(&mut a, &mut ring), [(1, true)]);
        // Two are under way when a third one's fails.
        assert!(matches!(a.start(&mut ring, 2, Io::Flush), Started::Pending));
        assert!(matches!(b.start(&mut ring, 2, Io::Flush), Started::Pending));
        losses.fail(Errno::IO);
        assert_eq!((wake(&mut a, &mut ring), wake(&mut b, &mut ring)), (vec![(2, false)], vec![(2, false)]));
        for channel in [&mut a, &mut b] {
            let Started::Finished(done) = channel.start(&mut ring, 3, Io::Flush) else { panic!("at once") };
            assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Flush);
            let zero = Io::Zero { offset: 0, len: 4096, punch: true };
            let Started::Finished(done) = channel.start(&mut ring, 3, zero) else { panic!("at once") };
            done.result.unwrap();
        }
    }

    #[test]
    fn every_channel_hears_of_a_loss_once() {
        let losses = FlushLosses::default();
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

    #[test]
    fn a_channel_that_flushes_once_takes_the_news_from_no_later_one() {
        let losses = FlushLosses::default();
        losses.acknowledge();
        assert!(losses.note());
        let mut suspended = losses.told();
        assert!(losses.tell(&mut suspended));
        let mut client = losses.told();
        assert!(losses.tell(&mut client), "it may be the one that wrote");
        assert!(!losses.tell(&mut client), "it was told, and goes on");
        losses.acknowledge();
        assert!(losses.note());
        assert!(losses.tell(&mut losses.told()), "the second loss is news");
    }
}
