//! A queue's channel to the volume: requests that are done at once, those that wait in the queue's
//! ring, and those that a worker does.

mod moving;

use std::sync::Arc;

use underseal_device::{
    Arena, Buffer, Channel, Finished, Immediate, Io, IoKind, LowerToken, ReplyReceiver, Ring, RingToken,
    Started, monotonic,
};

use self::moving::{BITS, DATA, PartContinuation, RingTransfer, TAGS};
use super::jobs::QueuedRequest;
use super::lower::NonWaitingLower;
use super::{Shared, as_result, untagged};
use crate::core::{BlockTransfer, Side, StepResult, Stop};

/// Bytes of memory for pages of tags that are being read.
const ROOM: usize = 1 << 20;
/// An event of the channel, beside [`ReplyReceiver`]'s: the time to start requests again that found
/// the ring full.
const CLOCK: u8 = 2;
/// The delay before that.
const SOON: std::time::Duration = std::time::Duration::from_millis(2);

/// The pages that must be read for a request: first byte, and memory.
type Pages = Option<(u64, Buffer)>;

fn no_bell(e: std::io::Error) -> underseal_device::Error {
    underseal_device::Error::new(underseal_device::ErrorKind::Open, "no descriptor is left").with_source(e)
}

fn as_now(step: StepResult) -> Immediate {
    match step {
        Ok(()) => Immediate::Done,
        Err(Stop::Blocked(n)) => Immediate::Blocked(n),
        Err(Stop::Failed(e)) => Immediate::Failed(e),
    }
}

/// A queue's channel.
pub(super) struct IntegrityChannel {
    lower: NonWaitingLower,
    shared: Arc<Shared>,
    awaited: ReplyReceiver<Finished>,
    /// Requests in the ring, by slot.
    moving: Vec<Option<RingTransfer>>,
    /// Requests of which a part has to be started again.
    again: Vec<u32>,
    ticks: bool,
    arena: Arena,
    /// Completions of a lower channel after its wakeup.
    over: Vec<Finished>,
}

impl IntegrityChannel {
    /// Makes a channel for `depth` requests at a time.
    pub(super) fn new(shared: Arc<Shared>, depth: u32) -> underseal_device::Result<Self> {
        let awaited = ReplyReceiver::new(depth).map_err(no_bell)?;
        let parts = depth.saturating_mul(1 << BITS);
        Ok(Self {
            lower: NonWaitingLower::new(&*shared.data, shared.meta.as_deref(), parts)?,
            shared,
            awaited,
            moving: (0..depth).map(|_| None).collect(),
            again: Vec::new(),
            ticks: false,
            arena: Arena::new(ROOM)?,
            over: Vec::new(),
        })
    }

    fn after_write(&self, step: StepResult) -> Immediate {
        self.shared.rouse_keeper();
        as_now(step)
    }
}

impl Channel for IntegrityChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        as_now(self.shared.core.read(&mut self.lower, offset, data, &mut []))
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        if self.shared.geometry.tag_size > 0 {
            return Immediate::Failed(untagged(IoKind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.lower, offset, data, &[]);
        self.after_write(step)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        if self.shared.geometry.tag_size == 0 {
            return Immediate::Failed(not_kept(IoKind::Read, offset));
        }
        as_now(self.shared.core.read(&mut self.lower, offset, data, tags))
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        if self.shared.geometry.tag_size == 0 {
            return Immediate::Failed(not_kept(IoKind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.lower, offset, data, tags);
        // The write is repeated as a whole: blocks in the journal are put there again.
        match self.after_write(step) {
            Immediate::Blocked(_) => Immediate::Blocked(0),
            now => now,
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match self.shared.refused(io, slot) {
            Err(refused) => return Started::Finished(refused),
            Ok(io) => io,
        };
        match self.begin(ring, &io) {
            Ok(Some((flight, pages))) => {
                self.moving[slot as usize] = RingTransfer::new(flight, pages, io);
                self.go(ring, slot).map_or(Started::Pending, Started::Finished)
            }
            Ok(None) => self.hand_over(ring, slot, io),
            Err(e) => Started::Finished(Finished::of(slot, io, Err(e))),
        }
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let below = token.below(BITS)?;
        let part = below.as_lower()? % (1 << BITS);
        let (side, way) = self.way(part);
        let channel = self.lower.side(side);
        let done = ring.nested(way, |ring| channel.finish(ring, below, result))?;
        self.part_over(ring, done)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        match token.fork(2) {
            Some((number, below)) => {
                let side = if number == 0 { Side::Data } else { Side::Meta };
                let (channel, way) = (self.lower.side(side), LowerToken::new(BITS, number, 2));
                let mut done = std::mem::take(&mut self.over);
                ring.nested(way, |ring| channel.woken(ring, below, result, &mut done));
                over.extend(done.drain(..).filter_map(|done| self.part_over(ring, done)));
                self.over = done;
            }
            None if token.what() == CLOCK => {
                self.ticks = false;
                let again = std::mem::take(&mut self.again);
                over.extend(again.into_iter().filter_map(|slot| self.go(ring, slot)));
            }
            None => over.extend(self.awaited.woken(ring, token)),
        }
    }
}

impl IntegrityChannel {
    /// Takes the resources of a request in the ring, and memory for the pages that it has to read.
    /// `None`: a worker does the request.
    fn begin(&mut self, ring: &Ring, io: &Io) -> underseal_device::Result<Option<(BlockTransfer, Pages)>> {
        if !ring.has_timeouts() {
            // Without timeouts, a request that found the ring full could not be started again.
            return Ok(None);
        }
        let core = &self.shared.core;
        let aligned = |buffer: &Buffer, range: &std::ops::Range<usize>| {
            let unit = self.shared.alignment;
            unit <= 1 || buffer[range.clone()].as_ptr().addr().is_multiple_of(unit)
        };
        let begun = match io {
            Io::Read { offset, buffer, range } if aligned(buffer, range) => {
                Ok(core.begin_read(*offset, range.len(), false))
            }
            Io::ReadTagged { offset, buffer, range, .. } if aligned(buffer, range) => {
                Ok(core.begin_read(*offset, range.len(), true))
            }
            Io::Write { offset, buffer, range, durable: false }
            | Io::WriteTagged { offset, buffer, range, durable: false, .. }
                if aligned(buffer, range) =>
            {
                core.begin_write(*offset, &buffer[range.clone()])
            }
            _ => return Ok(None),
        };
        let flight = match begun {
            Ok(Some(flight)) => flight,
            Ok(None) | Err(Stop::Blocked(_)) => return Ok(None),
            Err(Stop::Failed(e)) => return Err(e),
        };
        let Some(unread) = core.unread(&flight) else { return Ok(Some((flight, None))) };
        let len = usize::try_from(unread.end - unread.start).unwrap_or(usize::MAX);
        let Some(memory) = self.arena.alloc(len) else {
            core.give_up(&flight);
            return Ok(None);
        };
        Ok(Some((flight, Some((unread.start, memory)))))
    }

    fn hand_over(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let job = QueuedRequest { slot, io, to: self.awaited.replies(), done: 0 };
        if let Some(QueuedRequest { slot, io, .. }) = self.shared.jobs.push(job) {
            let (kind, (offset, _)) = (io.kind(), io.extent());
            let closed = kind.failed(offset, "the volume is closed", rustix::io::Errno::SHUTDOWN);
            return Started::Finished(Finished::of(slot, io, Err(closed)));
        }
        self.awaited.expect(ring);
        Started::Pending
    }

    /// The lower channel for a part of a request, and its token.
    fn way(&self, part: u32) -> (Side, LowerToken) {
        if part == TAGS && self.shared.meta.is_some() {
            (Side::Meta, LowerToken::new(BITS, 1, 2))
        } else {
            (Side::Data, LowerToken::new(BITS, 0, 2))
        }
    }

    /// Starts the parts of a request that were not started. Returns the request, if it is over
    /// then.
    fn go(&mut self, ring: &mut Ring, slot: u32) -> Option<Finished> {
        for part in [TAGS, DATA] {
            let (side, way) = self.way(part);
            let channel = self.lower.side(side);
            let moving = self.moving.get_mut(slot as usize)?.as_mut()?;
            let Some(io) = moving.next(part, channel) else { continue };
            let below = slot << BITS | part;
            if let Started::Finished(done) = ring.nested(way, |ring| channel.start(ring, below, io)) {
                self.take(ring, done);
            }
        }
        self.end(ring, slot)
    }

    /// Takes a finished part of a request. Returns the request, if it is over then.
    fn part_over(&mut self, ring: &mut Ring, done: Finished) -> Option<Finished> {
        let slot = done.slot >> BITS;
        self.take(ring, done);
        self.go(ring, slot)
    }

    fn take(&mut self, ring: &mut Ring, done: Finished) {
        let slot = done.slot >> BITS;
        let Some(Some(moving)) = self.moving.get_mut(slot as usize) else { return };
        let PartContinuation::Soon = moving.take(done) else { return };
        if !self.again.contains(&slot) {
            self.again.push(slot);
        }
        if !self.ticks {
            self.ticks = ring.timeout(RingToken::channel(CLOCK), monotonic() + SOON).is_ok();
        }
    }

    /// Returns the request, if no part of it is in flight any more.
    fn end(&mut self, ring: &mut Ring, slot: u32) -> Option<Finished> {
        let place = self.moving.get_mut(slot as usize)?;
        let moving = place.take_if(|moving| moving.is_over())?;
        let RingTransfer { flight, is_read, offset, mut buffer, range, mut tags, pages, failed, .. } = moving;
        let core = &self.shared.core;
        if let Some((at, memory)) = pages {
            if let (Some(memory), None) = (&memory, &failed) {
                core.pages_came(&flight, at, memory);
            }
            memory.into_iter().for_each(|memory| self.arena.free(memory));
        }
        if failed.is_some()
            && flight.is_in_journal()
            && let Some(buffer) = buffer.take()
        {
            // The unreadable block may be in the journal: a worker reads only blocks that are not.
            drop(flight);
            let io = match tags {
                Some(tags) => Io::ReadTagged { offset, buffer, range, tags },
                None => Io::Read { offset, buffer, range },
            };
            return match self.hand_over(ring, slot, io) {
                Started::Finished(done) => Some(done),
                Started::Pending => None,
            };
        }
        let came = match (failed, &buffer) {
            (Some(e), _) => Err(e),
            (None, None) => Err(kept(is_read, offset)),
            (None, Some(_)) => Ok(()),
        };
        let of_tags = self.shared.geometry.tags_of(range.len());
        let (step, kind) = if is_read {
            let data = buffer.as_deref_mut().map(|buffer| &mut buffer[range]).unwrap_or_default();
            let tags = tags.as_deref_mut().map(|tags| &mut tags[..of_tags]).unwrap_or_default();
            (core.end_read(&flight, came, data, tags), IoKind::Read)
        } else {
            let tags = tags.as_deref().map(|tags| &tags[..of_tags]).unwrap_or_default();
            (core.end_write(&flight, came, tags), IoKind::Write)
        };
        drop(flight);
        if !is_read {
            self.shared.rouse_keeper();
        }
        Some(Finished { slot, buffer, tags, result: as_result(step, kind, offset) })
    }
}

impl Drop for IntegrityChannel {
    /// Writes in flight of a broken queue reach the disk at an unknown time: their blocks stay
    /// locked, and their region is not clean.
    fn drop(&mut self) {
        for moving in self.moving.drain(..).flatten().filter(|moving| !moving.is_read) {
            log::error!(
                "a queue ended while it wrote {} bytes at byte {}: they are locked until the volume is opened again",
                moving.range.len(),
                moving.offset
            );
            std::mem::forget(moving.flight);
        }
    }
}

/// The lower channel broke its contract.
fn kept(is_read: bool, offset: u64) -> underseal_device::Error {
    let kind = if is_read { IoKind::Read } else { IoKind::Write };
    kind.failed(offset, "the request's memory did not come back from the device below", rustix::io::Errno::IO)
}

fn not_kept(kind: IoKind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "the volume makes its tags itself", rustix::io::Errno::OPNOTSUPP)
}
