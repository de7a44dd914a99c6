//! RAID-0: a device made of several, with a chunk on each in turn.
//!
//! ```text
//!   offset   0         chunk     2 chunk   3 chunk   ...
//!            | member 0 | member 1 | member 0 | member 1 |
//!   request            [  piece  |  piece   | pie ]       each piece is a request of its member's
//! ```
//!
//! A piece holds its part of the request's memory and a slot of its member's channel. A request is
//! over when all its pieces are; its error is the first piece's.

use std::sync::Arc;

use crate::{
    Buffer, Channel, Device, Error, ErrorKind, Extent, Finished, Geometry, Immediate, Io, IoKind, LowerToken,
    Result, Ring, RingToken, Started,
};

/// Bits of a member's slot that number the pieces of one request, and the largest number of pieces
/// of a request in flight.
const BITS: u32 = 4;
const PARTS: usize = 1 << BITS;

/// Several devices, a chunk on each in turn.
pub struct StripeDevice {
    members: Vec<Arc<dyn Device>>,
    layout: Layout,
    geometry: Geometry,
    name: String,
}

impl StripeDevice {
    /// Makes a stripe over `members` in chunks of `chunk` bytes. All members are used up to the
    /// smallest one's size.
    ///
    /// # Errors
    /// `Alignment` when there is no member, a member has zones, or the chunk is no multiple of the
    /// members' blocks.
    pub fn new(members: Vec<Arc<dyn Device>>, chunk: u64) -> Result<Self> {
        let bad = |why: &str| {
            Err(Error::new(ErrorKind::Alignment, format!("a stripe in chunks of {chunk} bytes: {why}")))
        };
        let geometries: Vec<_> = members.iter().map(|m| m.geometry()).collect();
        let largest = |of: fn(&Geometry) -> u32| geometries.iter().map(of).max();
        let Some(memory_alignment) = largest(|g| g.memory_alignment) else { return bad("it needs a device") };
        let block = largest(|g| g.block).unwrap_or(1);
        if geometries.iter().any(|g| g.zones.is_some()) {
            return bad("its devices may not be zoned");
        }
        // A piece's memory begins where the one before ends.
        let block = if memory_alignment > 1 { block.max(memory_alignment) } else { block };
        if chunk == 0 || !chunk.is_multiple_of(u64::from(block)) {
            return bad(&format!("it must be a multiple of {block} bytes"));
        }
        let count = members.len() as u64;
        let smallest = geometries.iter().map(|g| g.size).min().unwrap_or(0);
        let layout = Layout { chunk, count };
        let Some(size) = layout.size(smallest) else { return bad("it is too large") };
        let geometry = Geometry {
            size,
            block,
            preferred_block: largest(|g| g.preferred_block).unwrap_or(1).max(block),
            memory_alignment,
            read_only: geometries.iter().any(|g| g.read_only),
            discard: geometries.iter().all(|g| g.discard),
            zones: None,
            tag_size: 0,
        };
        let names: Vec<_> = members.iter().map(|m| m.name()).collect();
        let name = format!("stripe({})", names.join(", "));
        Ok(Self { members, layout, geometry, name })
    }
}

impl Device for StripeDevice {
    fn geometry(&self) -> Geometry {
        let smallest = self.members.iter().map(|m| m.geometry().size).min().unwrap_or(0);
        Geometry { size: self.layout.size(smallest).unwrap_or(self.geometry.size), ..self.geometry }
    }

    fn below(&self) -> Vec<&dyn Device> {
        self.members.iter().map(|member| &**member).collect()
    }

    fn refresh(&self) -> Result<u64> {
        self.members.iter().try_for_each(|member| member.refresh().map(drop))?;
        Ok(self.geometry().size)
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let too_deep =
            || Error::new(ErrorKind::Memory, format!("a stripe's queue of depth {depth} is too deep"));
        let below = depth.checked_mul(1 << BITS).ok_or_else(too_deep)?;
        Ok(Box::new(StripeChannel {
            members: self.members.iter().map(|m| m.channel(below)).collect::<Result<_>>()?,
            layout: self.layout,
            flights: (0..depth).map(|_| Flight::default()).collect(),
            done: Vec::new(),
        }))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let mut whole: Option<Extent> = None;
        for (member, at, len) in self.layout.chunks(offset, len) {
            let part = self.members[member].extent(at, len);
            match &mut whole {
                None => whole = Some(part),
                Some(whole) if whole.hole == part.hole => whole.len += part.len,
                Some(_) => break,
            }
            if part.len < len {
                break;
            }
        }
        whole.unwrap_or(Extent { len, hole: false })
    }
}

/// The positions of bytes on the members.
#[derive(Debug, Clone, Copy)]
struct Layout {
    chunk: u64,
    count: u64,
}

impl Layout {
    /// The size of a stripe over members of this size.
    fn size(self, member: u64) -> Option<u64> {
        (member / self.chunk * self.chunk).checked_mul(self.count)
    }

    /// The pieces of a range in order: member, offset on it, length.
    fn chunks(self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (chunk, within) = (at / self.chunk, at % self.chunk);
            let len = (self.chunk - within).min(end - at);
            at += len;
            #[expect(clippy::cast_possible_truncation, reason = "the number of a member in memory")]
            let member = (chunk % self.count) as usize;
            Some((member, chunk / self.count * self.chunk + within, len))
        })
    }

    /// How many of the first `offset` bytes lie on a member: the member's offset of its next byte.
    fn on(self, member: u64, offset: u64) -> u64 {
        let row = self.chunk * self.count;
        let within = (offset % row).saturating_sub(member * self.chunk).min(self.chunk);
        offset / row * self.chunk + within
    }
}

struct StripeChannel {
    members: Vec<Box<dyn Channel>>,
    layout: Layout,
    flights: Vec<Flight>,
    /// Requests that a member has finished together.
    done: Vec<Finished>,
}

/// A request and its pieces. The slot's next request uses it again.
#[derive(Default)]
struct Flight {
    /// The operation of each piece; `None` when the slot is free.
    job: Option<Job>,
    pieces: Vec<Piece>,
    /// The first piece that was not started.
    next: usize,
    /// The pieces in flight, by their part of the slot.
    parts: [Option<usize>; PARTS],
    /// The memory before the range; at the end, all of it.
    memory: Option<Buffer>,
    /// The memory behind the range.
    behind: Option<Buffer>,
    error: Option<Error>,
}

#[derive(Debug, Clone, Copy)]
enum Job {
    Read,
    Write { durable: bool },
    Flush,
    Discard,
    Zero { punch: bool },
    Prefetch,
}

struct Piece {
    member: usize,
    offset: u64,
    len: u64,
    buffer: Option<Buffer>,
}

impl Piece {
    fn io(&mut self, job: Job) -> Option<Io> {
        let (offset, len) = (self.offset, self.len);
        Some(match job {
            Job::Read => {
                let buffer = self.buffer.take()?;
                Io::Read { offset, range: 0..buffer.len(), buffer }
            }
            Job::Write { durable } => {
                let buffer = self.buffer.take()?;
                Io::Write { offset, range: 0..buffer.len(), buffer, durable }
            }
            Job::Flush => Io::Flush,
            Job::Discard => Io::Discard { offset, len },
            Job::Zero { punch } => Io::Zero { offset, len, punch },
            Job::Prefetch => Io::Prefetch { offset, len },
        })
    }
}

impl Flight {
    /// Cuts a request into pieces.
    fn begin(&mut self, layout: Layout, io: Io) {
        let (offset, len) = io.extent();
        let kind = io.kind();
        self.pieces.clear();
        (self.next, self.error) = (0, None);
        let (job, memory) = match io {
            Io::Read { buffer, range, .. } | Io::ReadTagged { buffer, range, .. } => {
                (Job::Read, Some((buffer, range)))
            }
            Io::Write { buffer, range, durable, .. } | Io::WriteTagged { buffer, range, durable, .. } => {
                (Job::Write { durable }, Some((buffer, range)))
            }
            Io::Flush => (Job::Flush, None),
            Io::Discard { .. } => (Job::Discard, None),
            Io::Zero { punch, .. } => (Job::Zero { punch }, None),
            Io::Prefetch { .. } => (Job::Prefetch, None),
        };
        self.job = Some(job);
        let Some((mut buffer, range)) = memory else {
            // The bytes of a member are contiguous on it.
            self.pieces.extend((0..layout.count).zip(0..).filter_map(|(number, member)| {
                let (from, to) = (layout.on(number, offset), layout.on(number, offset + len));
                let piece = Piece { member, offset: from, len: to - from, buffer: None };
                (kind == IoKind::Flush || from < to).then_some(piece)
            }));
            return;
        };
        let mut rest = buffer.split_off(range.start);
        self.behind = Some(rest.split_off(range.len()));
        self.memory = Some(buffer);
        for (member, offset, len) in layout.chunks(offset, len) {
            #[expect(clippy::cast_possible_truncation, reason = "a part of a buffer")]
            let behind = rest.split_off(len as usize);
            let buffer = Some(std::mem::replace(&mut rest, behind));
            self.pieces.push(Piece { member, offset, len, buffer });
        }
    }

    /// Joins the request's memory again.
    fn end(&mut self, slot: u32) -> Finished {
        self.job = None;
        let mut buffer = self.memory.take();
        let parts = self.pieces.iter_mut().map(|piece| piece.buffer.take()).chain([self.behind.take()]);
        for part in parts {
            match (&mut buffer, part) {
                (Some(buffer), Some(part)) => buffer.join(part),
                // A member has kept a piece's memory: the rest cannot be returned either.
                _ => buffer = None,
            }
        }
        let result = self.error.take().map_or(Ok(()), Err);
        Finished { slot, buffer, tags: None, result }
    }

    fn piece_over(&mut self, piece: usize, done: Finished) {
        self.pieces[piece].buffer = done.buffer;
        if let Err(e) = done.result {
            self.error.get_or_insert(e);
        }
    }
}

/// The request's slot and part from a member's slot.
fn parts(below: u32) -> (u32, usize) {
    (below >> BITS, below as usize % PARTS)
}

impl StripeChannel {
    /// Notes that a member has done its piece; returns the request after the last one.
    fn go_on(&mut self, ring: &mut Ring, done: Finished) -> Option<Finished> {
        let (slot, part) = parts(done.slot);
        let flight = self.flights.get_mut(slot as usize)?;
        let index = flight.parts[part].take()?;
        flight.piece_over(index, done);
        self.advance(ring, slot)
    }

    /// Starts as many pieces as may be in flight; returns the request when all are done.
    fn advance(&mut self, ring: &mut Ring, slot: u32) -> Option<Finished> {
        let flight = &mut self.flights[slot as usize];
        let job = flight.job?;
        while flight.error.is_none() && flight.next < flight.pieces.len() {
            let part = flight.parts.iter().position(Option::is_none)?;
            let index = flight.next;
            flight.next += 1;
            let piece = &mut flight.pieces[index];
            let way = LowerToken::new(BITS, piece.member, self.members.len());
            let member = &mut self.members[piece.member];
            let Some(io) = piece.io(job) else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "below PARTS")]
            let below = slot << BITS | part as u32;
            match ring.nested(way, |ring| member.start(ring, below, io)) {
                Started::Finished(done) => flight.piece_over(index, done),
                Started::Pending => flight.parts[part] = Some(index),
            }
        }
        flight.parts.iter().all(Option::is_none).then(|| flight.end(slot))
    }
}

impl Channel for StripeChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        let mut done = 0;
        for (member, at, len) in self.layout.chunks(offset, data.len() as u64) {
            #[expect(clippy::cast_possible_truncation, reason = "a part of a slice")]
            let len = len as usize;
            match self.members[member].read_now(at, &mut data[done..done + len]) {
                Immediate::Done => done += len,
                Immediate::Blocked(n) => return Immediate::Blocked(done + n),
                failed @ Immediate::Failed(_) => return failed,
            }
        }
        Immediate::Done
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        let mut done = 0;
        for (member, at, len) in self.layout.chunks(offset, data.len() as u64) {
            #[expect(clippy::cast_possible_truncation, reason = "a part of a slice")]
            let len = len as usize;
            match self.members[member].write_now(at, &data[done..done + len]) {
                Immediate::Done => done += len,
                Immediate::Blocked(n) => return Immediate::Blocked(done + n),
                failed @ Immediate::Failed(_) => return failed,
            }
        }
        Immediate::Done
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => io,
            Err(refused) => return Started::Finished(refused),
        };
        self.flights[slot as usize].begin(self.layout, io);
        self.advance(ring, slot).map_or(Started::Pending, Started::Finished)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let below = token.below(BITS)?;
        let (slot, part) = parts(below.as_lower()?);
        let flight = self.flights.get(slot as usize)?;
        let number = flight.pieces[flight.parts[part]?].member;
        let way = LowerToken::new(BITS, number, self.members.len());
        let done = ring.nested(way, |ring| self.members[number].finish(ring, below, result))?;
        self.go_on(ring, done)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let Some((number, below)) = token.fork(self.members.len()) else { return };
        let mut done = std::mem::take(&mut self.done);
        let way = LowerToken::new(BITS, number, self.members.len());
        ring.nested(way, |ring| self.members[number].woken(ring, below, result, &mut done));
        over.extend(done.drain(..).filter_map(|done| self.go_on(ring, done)));
        self.done = done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, RamDevice};

    fn ram(size: u64) -> Arc<dyn Device> {
        Arc::new(RamDevice::new(size))
    }

    #[test]
    fn chunks_lie_on_the_members_in_turn() {
        let members = vec![ram(16 << 10), ram(20 << 10), ram(16 << 10)];
        let stripe = StripeDevice::new(members.clone(), 4096).unwrap();
        assert_eq!(stripe.geometry().size, 48 << 10);
        let data: Vec<u8> = (0..12).flat_map(|chunk| [chunk; 4096]).collect();
        Blocking::new(&stripe).unwrap().write(0, &data, false).unwrap();
        for (number, member) in (0u8..).zip(&members) {
            let mut on = vec![0; 16 << 10];
            Blocking::new(&**member).unwrap().read(0, &mut on).unwrap();
            let expected: Vec<u8> = (0..4).flat_map(|row| [row * 3 + number; 4096]).collect();
            assert!(on == expected, "member {number}");
        }
    }

    #[test]
    fn a_range_without_memory_is_one_run_on_each_member() {
        let layout = Layout { chunk: 4096, count: 3 };
        for (offset, len) in [(0u64, 4096u64), (4096, 8192), (1000, 40_000), (8191, 2), (12_288, 12_288)] {
            let mut runs = [0u64; 3];
            for (member, at, len) in layout.chunks(offset, len) {
                assert_eq!(at, layout.on(member as u64, offset) + runs[member]);
                runs[member] += len;
            }
            for (member, run) in (0..).zip(runs) {
                assert_eq!(run, layout.on(member, offset + len) - layout.on(member, offset));
            }
        }
    }

    #[test]
    fn a_stripe_that_cannot_be_is_refused() {
        let error = |members, chunk| StripeDevice::new(members, chunk).err().map(|e| e.kind());
        assert_eq!(error(vec![], 4096), Some(ErrorKind::Alignment));
        assert_eq!(error(vec![ram(4096)], 0), Some(ErrorKind::Alignment));
        assert_eq!(error(vec![ram(4096)], 4096), None);
    }
}
