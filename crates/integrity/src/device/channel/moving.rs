//! A request in the ring: its bytes, and the pages of its tags, in flight independently.

use std::ops::Range;

use rustix::io::Errno;
use underseal_device::{Buffer, Channel, Error, Finished, Immediate, Io};

use crate::core::BlockTransfer;

/// Bits of the lower slots that name the part of a request.
pub(super) const BITS: u32 = 1;
/// The part with the request's bytes.
pub(super) const DATA: u32 = 0;
/// The part with the pages of the tags.
pub(super) const TAGS: u32 = 1;
/// The number of times that a part is started again after the ring was full.
const TRIES: u16 = 2000;

/// A request in the ring.
pub(super) struct RingTransfer {
    pub(super) flight: BlockTransfer,
    pub(super) is_read: bool,
    pub(super) offset: u64,
    /// The request's memory, unless the lower channel has it.
    pub(super) buffer: Option<Buffer>,
    pub(super) range: Range<usize>,
    /// The request's memory for tuples.
    pub(super) tags: Option<Buffer>,
    /// Pages to be read: the first byte, and memory, unless the lower channel has it.
    pub(super) pages: Option<(u64, Option<Buffer>)>,
    /// The first failure.
    pub(super) failed: Option<Error>,
    /// The written bytes of a write.
    written: usize,
    parts: [Part; 2],
    tries: u16,
}

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Waits,
    Below,
    Over,
}

/// The continuation after a part came back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartContinuation {
    No,
    /// The ring was full: the part is to be started again.
    Soon,
}

impl RingTransfer {
    /// Begins a transfer; `None` for a request that is neither a read nor a write.
    pub(super) fn new(flight: BlockTransfer, pages: Option<(u64, Buffer)>, io: Io) -> Option<Self> {
        let is_read = matches!(io, Io::Read { .. } | Io::ReadTagged { .. });
        let (offset, buffer, range, tags) = match io {
            Io::Read { offset, buffer, range } | Io::Write { offset, buffer, range, .. } => {
                (offset, buffer, range, None)
            }
            Io::ReadTagged { offset, buffer, range, tags }
            | Io::WriteTagged { offset, buffer, range, tags, .. } => (offset, buffer, range, Some(tags)),
            _ => return None,
        };
        let of_tags = if pages.is_some() { Part::Waits } else { Part::Over };
        Some(Self {
            flight,
            is_read,
            offset,
            buffer: Some(buffer),
            range,
            tags,
            pages: pages.map(|(at, memory)| (at, Some(memory))),
            failed: None,
            written: 0,
            parts: [Part::Waits, of_tags],
            tries: 0,
        })
    }

    /// The operation to start for a part, on its channel; `None`: nothing now. Bytes that can be
    /// written at once are written.
    pub(super) fn next(&mut self, part: u32, channel: &mut dyn Channel) -> Option<Io> {
        if self.parts[part as usize] != Part::Waits {
            return None;
        }
        if self.failed.is_some() {
            self.parts[part as usize] = Part::Over;
            return None;
        }
        if part == DATA && !self.is_read && self.parts[TAGS as usize] != Part::Over {
            // Data must not be written while its tags cannot be changed.
            return None;
        }
        let io = if part == TAGS {
            let (at, memory) = self.pages.as_mut()?;
            let buffer = memory.take()?;
            Io::Read { offset: *at, range: 0..buffer.len(), buffer }
        } else if self.is_read {
            Io::Read { offset: self.flight.place, buffer: self.buffer.take()?, range: self.range.clone() }
        } else {
            let rest = |written: usize| {
                (self.flight.place + written as u64, self.range.start + written..self.range.end)
            };
            let (offset, range) = rest(self.written);
            match channel.write_now(offset, &self.buffer.as_deref()?[range]) {
                Immediate::Blocked(n) => self.written += n,
                now => {
                    self.parts[DATA as usize] = Part::Over;
                    self.failed = if let Immediate::Failed(e) = now { Some(e) } else { None };
                    return None;
                }
            }
            let (offset, range) = rest(self.written);
            Io::Write { offset, buffer: self.buffer.take()?, range, durable: false }
        };
        self.parts[part as usize] = Part::Below;
        Some(io)
    }

    /// Takes a part that is over, or found the ring full.
    pub(super) fn take(&mut self, done: Finished) -> PartContinuation {
        let Finished { slot, buffer, result, .. } = done;
        let part = slot % (1 << BITS);
        let has_memory = buffer.is_some();
        if part == DATA {
            self.buffer = buffer;
        } else if let Some((_, memory)) = &mut self.pages {
            *memory = buffer;
        }
        let errno = result.as_ref().err().and_then(Error::errno).map(Errno::from_raw_os_error);
        let is_refused = matches!(errno, Some(Errno::BUSY | Errno::AGAIN));
        if is_refused && has_memory && self.tries < TRIES && self.failed.is_none() {
            self.tries += 1;
            self.parts[part as usize] = Part::Waits;
            return PartContinuation::Soon;
        }
        self.parts[part as usize] = Part::Over;
        if let Err(e) = result {
            self.failed.get_or_insert(e);
        }
        PartContinuation::No
    }

    /// True when no part is in flight, or will be.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |part: &Part| *part == Part::Over || self.failed.is_some() && *part == Part::Waits;
        self.parts.iter().all(is_over)
    }
}
