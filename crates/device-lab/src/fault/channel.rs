//! A channel of a device with faults.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::FaultControl;
use super::cache::{FlushedWrites, Write};
use super::rule::{Decision, NowDecision};
use underseal_device::{
    Arena, Buffer, Channel, Error, ErrorKind, Finished, Immediate, Io, IoKind, LowerToken, Result, Ring,
    RingToken, Started, monotonic,
};

/// Bytes of overwritten data that are read at a time.
const SAVED: usize = 64 << 10;

pub(super) struct FaultChannel {
    inner: Box<dyn Channel>,
    control: Arc<FaultControl>,
    /// A transfer can be cut at multiples of this.
    unit: u64,
    /// Memory for the overwritten bytes; `None` without a cache.
    arena: Option<Arena>,
    flights: Vec<Option<Flight>>,
    /// Requests that the device below has completed together.
    done: Vec<Finished>,
}

/// A request in progress.
struct Flight {
    stage: Stage,
    kind: IoKind,
    offset: u64,
    /// The length in bytes; 1 for a flush.
    len: u64,
    durable: bool,
    punch: bool,
    /// The request's memory, unless the device below has it.
    buffer: Option<Buffer>,
    /// The offset of its bytes in the memory.
    from: usize,
    /// The number of finished bytes.
    done: u64,
    decision: Decision,
    /// The state of the power at its beginning.
    power: u64,
    /// The write's number, when the request changes a device with a cache.
    write: Option<Write>,
    covered: Option<FlushedWrites>,
}

/// The stage that a request waits for.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Delay,
    /// All bytes before `at` are saved; saving ends at `end`.
    Save {
        at: u64,
        end: u64,
    },
    Transfer,
}

impl FaultChannel {
    pub(super) fn new(inner: Box<dyn Channel>, control: Arc<FaultControl>, depth: u32) -> Result<Self> {
        let arena = match control.state().cache {
            Some(_) => Some(Arena::new(SAVED.saturating_mul(depth as usize))?),
            None => None,
        };
        let unit = u64::from(control.inner.geometry().block.max(512));
        Ok(Self {
            inner,
            control,
            unit,
            arena,
            flights: (0..depth).map(|_| None).collect(),
            done: Vec::new(),
        })
    }

    fn flight(&mut self, slot: u32) -> &mut Flight {
        self.flights[slot as usize].as_mut().expect("only requests in flight are asked for")
    }

    /// Advances a request until it is over, or has to wait. Returns the request when it is over.
    fn advance(&mut self, ring: &mut Ring, slot: u32) -> Option<Finished> {
        loop {
            let power = self.control.state().power;
            let flight = self.flight(slot);
            if flight.power != power {
                let error = flight.error("the power was cut", Errno::IO);
                return Some(self.over(slot, Err(error)));
            }
            let io = match flight.stage {
                Stage::Delay => {
                    let delay = std::mem::take(&mut flight.decision.delay);
                    if delay > Duration::ZERO {
                        match ring.timeout(RingToken::lower(slot), monotonic().saturating_add(delay)) {
                            Ok(()) => return None,
                            Err(e) => {
                                let errno = Errno::from_io_error(&e).unwrap_or(Errno::BUSY);
                                let error = flight.error("the ring takes no timeout", errno);
                                return Some(self.over(slot, Err(error)));
                            }
                        }
                    }
                    self.after_delay(slot);
                    continue;
                }
                Stage::Save { at, end } if at < end => match self.save(at, end) {
                    Ok(io) => io,
                    Err(e) => return Some(self.over(slot, Err(e))),
                },
                Stage::Save { .. } => {
                    flight.stage = Stage::Transfer;
                    continue;
                }
                Stage::Transfer => match flight.next() {
                    Ok(Some(io)) => io,
                    Ok(None) => return Some(self.over(slot, Ok(()))),
                    Err(e) => return Some(self.over(slot, Err(e))),
                },
            };
            match ring.nested(LowerToken::ONLY, |ring| self.inner.start(ring, slot, io)) {
                Started::Pending => return None,
                Started::Finished(done) => {
                    if let Some(over) = self.below_done(slot, done) {
                        return Some(over);
                    }
                }
            }
        }
    }

    /// Continues a request after the lower device's part. Returns the request when it is over.
    fn go_on(&mut self, ring: &mut Ring, done: Finished) -> Option<Finished> {
        let slot = done.slot;
        self.below_done(slot, done).or_else(|| self.advance(ring, slot))
    }

    /// The first stage of a request after its delay.
    fn after_delay(&mut self, slot: u32) {
        let control = self.control.clone();
        let mut state = control.state();
        let flight = self.flight(slot);
        flight.stage = Stage::Transfer;
        let fails_at_once = flight.decision.fails.is_some_and(|(after, _)| after == 0);
        let Some(cache) = state.cache.as_mut().filter(|_| !fails_at_once) else { return };
        if flight.kind.changes() {
            flight.write = Some(cache.begin());
            let (at, end) = cache.around(flight.offset, flight.len);
            flight.stage = Stage::Save { at, end };
        } else if flight.kind == IoKind::Flush {
            flight.covered = Some(cache.cover());
        }
    }

    /// Reads the bytes that the request overwrites.
    fn save(&mut self, at: u64, end: u64) -> Result<Io> {
        let len = usize::try_from(end - at).unwrap_or(SAVED).min(SAVED);
        let buffer = self.arena.as_mut().and_then(|arena| arena.alloc(SAVED));
        let no_memory = || Error::new(ErrorKind::Memory, "no memory to save what a write overwrites");
        Ok(Io::Read { offset: at, buffer: buffer.ok_or_else(no_memory)?, range: 0..len })
    }

    /// Handles the end of the lower device's part. Returns the request after a failure.
    fn below_done(&mut self, slot: u32, done: Finished) -> Option<Finished> {
        let flight = self.flights[slot as usize].as_mut()?;
        match flight.stage {
            Stage::Delay => {}
            Stage::Save { at, end } => {
                let buffer = done.buffer?;
                let len = (end - at).min(SAVED as u64);
                // After a power cut the bytes may be those that the cut has restored.
                let mut state = self.control.state();
                let is_on = state.power == flight.power;
                if let (Ok(()), true, Some(write), Some(cache)) =
                    (&done.result, is_on, flight.write, &mut state.cache)
                {
                    #[expect(clippy::cast_possible_truncation, reason = "at most SAVED")]
                    cache.save(write, at, &buffer[..len as usize]);
                }
                drop(state);
                flight.stage = Stage::Save { at: at + len, end };
                if let Some(arena) = &mut self.arena {
                    arena.free(buffer);
                }
            }
            Stage::Transfer => {
                if done.buffer.is_some() {
                    flight.buffer = done.buffer;
                }
                flight.done = flight.limit();
            }
        }
        done.result.err().map(|e| self.over(slot, Err(e)))
    }

    fn over(&mut self, slot: u32, mut result: Result<()>) -> Finished {
        let Some(flight) = self.flights[slot as usize].take() else {
            return Finished::bare(slot, result);
        };
        let mut state = self.control.state();
        if flight.power != state.power && result.is_ok() {
            result = Err(flight.error("the power was cut", Errno::IO));
        }
        if let Some(cache) = &mut state.cache {
            if let Some(write) = flight.write {
                cache.end(write, flight.durable && result.is_ok());
            }
            if let (Some(covered), Ok(())) = (&flight.covered, &result) {
                cache.flushed(covered);
            }
        }
        Finished { slot, buffer: flight.buffer, tags: None, result }
    }

    /// The decision for a request that may not wait, unless the request fails.
    fn now(
        &self,
        kind: IoKind,
        offset: u64,
        len: usize,
    ) -> std::result::Result<(NowDecision, u64), Immediate> {
        let mut state = self.control.state();
        if state.is_off() {
            return Err(Immediate::Failed(kind.failed(offset, "the power is off", Errno::IO)));
        }
        if kind.changes() && state.cache.is_some() {
            return Ok((NowDecision::Wait, state.power));
        }
        Ok((state.decide_now(kind, offset, len as u64, self.unit), state.power))
    }

    /// Fails a read that overlapped a power cut, since its bytes may be restored ones.
    fn if_still(&self, power: u64, offset: u64, read: Immediate) -> Immediate {
        if self.control.state().power == power {
            return read;
        }
        Immediate::Failed(IoKind::Read.failed(offset, "the power was cut", Errno::IO))
    }
}

/// The answer when only the first `cut` bytes were tried.
fn cut_short(answer: Immediate, cut: usize) -> Immediate {
    match answer {
        Immediate::Done => Immediate::Blocked(cut),
        other => other,
    }
}

impl Channel for FaultChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        match self.now(IoKind::Read, offset, data.len()) {
            Err(failed) => failed,
            Ok((NowDecision::Pass, power)) => {
                let read = self.inner.read_now(offset, data);
                self.if_still(power, offset, read)
            }
            Ok((NowDecision::Wait, _)) => Immediate::Blocked(0),
            Ok((NowDecision::Cut(cut), power)) => {
                let cut = usize::try_from(cut).unwrap_or(0);
                let read = cut_short(self.inner.read_now(offset, &mut data[..cut]), cut);
                self.if_still(power, offset, read)
            }
        }
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        match self.now(IoKind::Write, offset, data.len()) {
            Err(failed) => failed,
            Ok((NowDecision::Pass, _)) => self.inner.write_now(offset, data),
            Ok((NowDecision::Wait, _)) => Immediate::Blocked(0),
            Ok((NowDecision::Cut(cut), _)) => {
                let cut = usize::try_from(cut).unwrap_or(0);
                cut_short(self.inner.write_now(offset, &data[..cut]), cut)
            }
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => io,
            Err(refused) => return Started::Finished(refused),
        };
        let (power, decision) = {
            let mut state = self.control.state();
            let (offset, len) = io.extent();
            if state.is_off() {
                let error = io.kind().failed(offset, "the power is off", Errno::IO);
                return Started::Finished(Finished::of(slot, io, Err(error)));
            }
            (state.power, state.decide(io.kind(), offset, len, self.unit))
        };
        self.flights[slot as usize] = Some(Flight::new(io, decision, power));
        self.advance(ring, slot).map_or(Started::Pending, Started::Finished)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let slot = token.as_lower()?;
        if let Some(below) = token.below(0) {
            let done = ring.nested(LowerToken::ONLY, |ring| self.inner.finish(ring, below, result))?;
            return self.go_on(ring, done);
        }
        self.advance(ring, slot)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let Some((_, below)) = token.fork(1) else { return };
        let mut done = std::mem::take(&mut self.done);
        ring.nested(LowerToken::ONLY, |ring| self.inner.woken(ring, below, result, &mut done));
        over.extend(done.drain(..).filter_map(|done| self.go_on(ring, done)));
        self.done = done;
    }
}

impl Flight {
    fn new(io: Io, decision: Decision, power: u64) -> Self {
        let (kind, (offset, len)) = (io.kind(), io.extent());
        let durable = matches!(io, Io::Write { durable: true, .. });
        let punch = matches!(io, Io::Zero { punch: true, .. });
        let from = match &io {
            Io::Read { range, .. } | Io::Write { range, .. } => range.start,
            _ => 0,
        };
        Self {
            stage: Stage::Delay,
            kind,
            offset,
            len: if kind == IoKind::Flush { 1 } else { len },
            durable,
            punch,
            buffer: io.into_buffer(),
            from,
            done: 0,
            decision,
            power,
            write: None,
            covered: None,
        }
    }

    /// Returns the end of the part in progress.
    fn limit(&self) -> u64 {
        let cut = self.decision.cut.filter(|&cut| self.done < cut);
        let fails = self.decision.fails.map(|(after, _)| after);
        [cut, fails].into_iter().flatten().fold(self.len, u64::min)
    }

    /// Returns the next part for the lower device, or `None` at the end.
    fn next(&mut self) -> Result<Option<Io>> {
        if let Some((after, errno)) = self.decision.fails
            && self.done >= after
        {
            return Err(self.error("a fault was injected", Errno::from_raw_os_error(errno)));
        }
        let (offset, len) = (self.offset + self.done, self.limit() - self.done);
        if len == 0 {
            return Ok(None);
        }
        let mut memory = || {
            let lost = || Error::new(ErrorKind::Memory, "the device below has kept the request's memory");
            let buffer = self.buffer.take().ok_or_else(lost)?;
            #[expect(clippy::cast_possible_truncation, reason = "within the buffer")]
            let (from, len) = (self.from + self.done as usize, len as usize);
            Ok((buffer, from..from + len))
        };
        Ok(Some(match self.kind {
            IoKind::Read => {
                let (buffer, range) = memory()?;
                Io::Read { offset, buffer, range }
            }
            IoKind::Write => {
                let (buffer, range) = memory()?;
                Io::Write { offset, buffer, range, durable: self.durable }
            }
            IoKind::Flush => Io::Flush,
            IoKind::Discard => Io::Discard { offset, len },
            IoKind::Zero => Io::Zero { offset, len, punch: self.punch },
            IoKind::Prefetch => Io::Prefetch { offset, len },
        }))
    }

    fn error(&self, why: &str, errno: Errno) -> Error {
        self.kind.failed(self.offset + self.done, why, errno)
    }
}
