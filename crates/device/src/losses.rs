//! Acknowledged writes that may be lost, for every device that can lose them.
//!
//! ```text
//!   queue -- Sticky -- the device's channel   reports a failed flush (`fail`), or the loss of a
//!               \           /                 server (`note`)
//!              FlushLosses                    one for each device
//! ```
//!
//! Devices on other devices hold channels that are [`Sticky`] already, and pass their errors on.
//! Memory loses nothing.
//!
//! # A failed flush
//! Linux reports bytes that it could not write back once on each open file, and treats them as
//! written from then on: reads return them from memory, and the next flush succeeds without them.
//! So each channel of a file has a separate open file: with a shared one, only the first flush
//! would report the error. But a client that repeats the flush (QEMU does, when it resumes after an
//! error) would still get a success. So once a flush has failed, **every** flush fails, on every
//! channel, until the device is opened again: then clients start anew, and check. QEMU does the
//! same for its files. A durable write reports its own error only.
//!
//! An open file that is younger than the error does not get it after another one did: `cryptsetup
//! config` on a served image, or any fsync of it, would hide the loss from a client that connects
//! afterwards. So each flush of a file also asks the file that was opened first
//! (`file/write_back.rs`), and syncs of headers and reencryptions on it report here
//! (`FileDevice::sync`).
//!
//! # A lost server
//! The loss of acknowledged, unflushed writes with a server fails the next flush of each channel
//! once, for the reasons at the head of [`nbd`](crate::nbd). A later channel's flush fails too,
//! until a channel whose flush failed has flushed again: that client knows of the loss and
//! continues. A channel that flushes once and is closed (`suspend`, a handover, a snapshot) hides
//! no error from later ones. With several clients, a client that reconnects only after another one
//! has continued gets no error.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use rustix::io::Errno;

use crate::{Channel, Error, ErrorKind, Finished, Immediate, Io, Result, Ring, RingToken, Started};

/// The state of a device's acknowledged writes, over all its channels.
#[derive(Debug, Default)]
pub(crate) struct FlushLosses {
    /// The device's name.
    name: String,
    /// The error number of the first flush that failed; 0 before.
    failed: AtomicI32,
    /// Changes that were acknowledged without being durable.
    acknowledged: AtomicU64,
    /// How many of the acknowledged changes a flush or a loss has covered.
    settled: AtomicU64,
    /// How often acknowledged changes may have been lost.
    count: AtomicU64,
    /// How many of these losses a channel has reported that has flushed again since.
    told: AtomicU64,
}

impl FlushLosses {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Notes a failed flush: a requested one, or that of a durable write.
    pub(crate) fn fail(&self, errno: Errno) {
        if self.failed.compare_exchange(0, errno.raw_os_error(), SeqCst, SeqCst).is_ok() {
            log::error!(
                "{}: a flush failed ({errno}): acknowledged writes may be lost; every flush fails until the volume is opened again",
                self.name
            );
        }
    }

    /// Fails when no flush can succeed any more.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.load(SeqCst) {
            0 => Ok(()),
            errno => Err(unflushed(Errno::from_raw_os_error(errno))),
        }
    }

    /// Counts an acknowledged change.
    pub(crate) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, SeqCst);
    }

    /// The changes that a flush covers if it begins now.
    pub(crate) fn mark(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// Notes a successful flush, which covers `mark` changes.
    pub(crate) fn flushed(&self, mark: u64) {
        self.settled.fetch_max(mark, SeqCst);
    }

    /// Notes that the server may have ended. True when writes may be lost.
    pub(crate) fn note(&self) -> bool {
        let mark = self.mark();
        let lost = self.settled.fetch_max(mark, SeqCst) < mark;
        if lost {
            self.count.fetch_add(1, SeqCst);
        }
        lost
    }

    /// The losses that a new channel does not report.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(SeqCst)
    }

    /// True when a channel that has reported `seen` losses must report another one; `seen` is
    /// updated.
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

/// The error of a failed flush, or of a later one.
pub(crate) fn unflushed(errno: Errno) -> Error {
    Error::new(ErrorKind::Flush, "flush failed: acknowledged writes may be lost").with_source(errno)
}

/// A channel whose flushes fail after a failed flush of its device.
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

    /// Handles a finished request. After a successful flush, another channel's flush may have
    /// failed meanwhile, and taken the error.
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

    /// Completes a flush when it is woken, and other requests at once.
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
        // Two flushes are in flight when a third one fails.
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
