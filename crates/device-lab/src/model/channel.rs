//! A channel of a modelled disk.

use std::sync::Arc;

use rustix::io::Errno;

use super::Shared;
use super::disk::{DiskCookie, DiskProgress, DiskRequest};
use underseal_device::{Channel, Finished, Immediate, Io, LowerToken, Ring, RingToken, Started};

pub(super) struct ModelChannel {
    inner: Box<dyn Channel>,
    shared: Arc<Shared>,
    /// Requests whose time on the disk has not come yet.
    waiting: Vec<Option<(Io, DiskCookie)>>,
}

impl ModelChannel {
    pub(super) fn new(inner: Box<dyn Channel>, shared: Arc<Shared>, depth: u32) -> Self {
        Self { inner, shared, waiting: (0..depth).map(|_| None).collect() }
    }

    /// Advances a request: it is done on the lower device at its time, otherwise queried again.
    fn advance(&mut self, ring: &mut Ring, slot: u32) -> Option<Finished> {
        let (_, cookie) = self.waiting[slot as usize].as_ref()?;
        let until = {
            let mut disk = self.shared.disk();
            match disk.poll(self.shared.now(), *cookie) {
                DiskProgress::Until(at) => Some((at, *cookie)),
                DiskProgress::Done => None,
            }
        };
        if let Some((at, cookie)) = until {
            let armed = ring.timeout(RingToken::lower(slot), self.shared.deadline(at));
            let Err(e) = armed else { return None };
            self.shared.disk().abandon(cookie);
            let (io, _) = self.waiting[slot as usize].take()?;
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::BUSY);
            let error = io.kind().failed(io.extent().0, "the ring takes no timeout", errno);
            return Some(Finished::of(slot, io, Err(error)));
        }
        let (io, _) = self.waiting[slot as usize].take()?;
        match ring.nested(LowerToken::ONLY, |ring| self.inner.start(ring, slot, io)) {
            Started::Finished(done) => Some(done),
            Started::Pending => None,
        }
    }
}

impl Channel for ModelChannel {
    /// A disk never answers at once.
    fn read_now(&mut self, _offset: u64, _data: &mut [u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn read_tagged_now(&mut self, _offset: u64, _data: &mut [u8], _tags: &mut [u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn write_tagged_now(&mut self, _offset: u64, _data: &[u8], _tags: &[u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let cookie = {
            let mut disk = self.shared.disk();
            // The time is read under the lock, as the timeline's time must not decrease.
            disk.submit(self.shared.now(), DiskRequest::from(&io))
        };
        self.waiting[slot as usize] = Some((io, cookie));
        self.advance(ring, slot).map_or(Started::Pending, Started::Finished)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        match token.below(0) {
            Some(below) => ring.nested(LowerToken::ONLY, |ring| self.inner.finish(ring, below, result)),
            None => self.advance(ring, token.as_lower()?),
        }
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let Some((_, below)) = token.fork(1) else { return };
        ring.nested(LowerToken::ONLY, |ring| self.inner.woken(ring, below, result, over));
    }
}

impl Drop for ModelChannel {
    fn drop(&mut self) {
        let mut disk = self.shared.disk();
        self.waiting.drain(..).flatten().for_each(|(_, cookie)| disk.abandon(cookie));
    }
}
