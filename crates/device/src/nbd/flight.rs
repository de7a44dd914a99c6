//! A request in flight: its next question, and its result so far.

use std::time::Duration;

use rustix::io::Errno;
use underseal_nbd_protocol::{CommandFlags, Cookie, RequestHeader, RequestType, TransmissionFlags};

use super::handshake::ServerExport;
use crate::{Finished, Io};

/// The longest trim or zeroing in one question. The protocol allows more, but servers differ in
/// their limits.
const MOST: u64 = 1 << 30;
/// The most separate parts of a read's reply. More parts break the connection.
const MOST_PIECES: usize = 1 << 12;

/// A request of a channel. Where the request is longer than the server accepts, its pieces are
/// asked for one after the other.
pub(super) struct NbdRequest {
    /// The channel's number, and the request's slot there.
    pub(super) member: usize,
    pub(super) slot: u32,
    pub(super) io: Io,
    /// Bytes that are done.
    done: u64,
    /// Bytes of the current piece.
    pub(super) piece: u64,
    /// A durable write to a server without FUA: the write is done, and its flush is in flight.
    flushes: bool,
    /// The error of a write with FUA. The write is repeated without FUA: its success shows that the
    /// server's flush failed.
    pub(super) unsynced: Option<u32>,
    /// How many connections broke while this request was in flight.
    pub(super) breaks: u32,
    /// The time of the first break, and the number of replies of the link then, plus this request's
    /// replies since.
    pub(super) first_break: Duration,
    pub(super) answers: u64,
    /// Changes with every question, so that a late reply to an earlier one is not accepted.
    pub(super) generation: u32,
    /// The whole question has been sent.
    pub(super) is_sent: bool,
    pub(super) covered: AnsweredRanges,
    /// The first error in a reply in chunks.
    pub(super) error: Option<u32>,
    /// The acknowledged changes when the question was made: those that a flush covers.
    pub(super) mark: u64,
    /// Requests are sent again in the order of their numbers.
    pub(super) number: u64,
}

impl NbdRequest {
    pub(super) fn new(member: usize, slot: u32, io: Io, number: u64) -> Self {
        Self {
            member,
            slot,
            io,
            done: 0,
            piece: 0,
            flushes: false,
            unsynced: None,
            breaks: 0,
            first_break: Duration::ZERO,
            answers: 0,
            generation: 0,
            is_sent: false,
            covered: AnsweredRanges::default(),
            error: None,
            mark: 0,
            number,
        }
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.io, Io::Read { .. })
    }

    pub(super) fn is_flush(&self) -> bool {
        matches!(self.io, Io::Flush)
    }

    /// True when a flush is in flight: alone, or as the end of a durable write.
    pub(super) fn asks_to_flush(&self) -> bool {
        self.is_flush() || self.flushes
    }

    /// True when the request is acknowledged without being on stable storage. That includes a
    /// durable write to a server that has neither FUA nor flush.
    pub(super) fn is_volatile(&self, export: &ServerExport) -> bool {
        let durable = TransmissionFlags::SEND_FUA | TransmissionFlags::SEND_FLUSH;
        match self.io {
            Io::Write { durable: true, .. } => !export.flags.intersects(durable),
            Io::Write { .. } | Io::Discard { .. } | Io::Zero { .. } => true,
            _ => false,
        }
    }

    /// The piece's first byte in the export.
    pub(super) fn offset(&self) -> u64 {
        if self.flushes { 0 } else { self.io.extent().0 + self.done }
    }

    /// Makes the next question, or repeats one.
    pub(super) fn ask(&mut self, export: &ServerExport, mark: u64, generation: u32) {
        let left = self.io.extent().1 - self.done;
        let most = match self.io {
            Io::Read { .. } | Io::Write { .. } => export.max_block.into(),
            _ => MOST,
        };
        self.piece = if self.flushes { 0 } else { left.min(most) };
        self.generation = generation;
        self.is_sent = false;
        self.covered.clear();
        self.error = None;
        self.mark = mark;
    }

    /// Starts a write anew after the connection was lost, and with it perhaps the server's data.
    pub(super) fn starts_over(&mut self) {
        if !self.is_read() {
            (self.done, self.flushes) = (0, false);
        }
    }

    /// True when a write with FUA, which has failed with `error`, is to be repeated without FUA. A
    /// server's FUA is often a write and a flush of the whole export: where the write succeeds,
    /// that flush has failed, and other clients' writes may be lost.
    pub(super) fn retries_unsynced(&mut self, error: u32, export: &ServerExport) -> bool {
        let retries = self.has_fua(export);
        if retries {
            (self.unsynced, self.done) = (Some(error), 0);
        }
        retries
    }

    fn has_fua(&self, export: &ServerExport) -> bool {
        self.io.is_durable() && self.unsynced.is_none() && export.flags.contains(TransmissionFlags::SEND_FUA)
    }

    /// Notes that the piece is done. True when there is more to ask for.
    pub(super) fn goes_on(&mut self, export: &ServerExport) -> bool {
        if self.flushes {
            return false;
        }
        self.done += self.piece;
        if self.done < self.io.extent().1 {
            return true;
        }
        let durable = matches!(self.io, Io::Write { durable: true, .. });
        self.flushes = durable
            && export.flags.contains(TransmissionFlags::SEND_FLUSH)
            && !export.flags.contains(TransmissionFlags::SEND_FUA);
        self.flushes
    }

    pub(super) fn request(&self, index: u32, export: &ServerExport) -> RequestHeader {
        let has = |flag| export.flags.contains(flag);
        let mut flags = CommandFlags::empty();
        let command = match self.io {
            _ if self.flushes => RequestType::Flush,
            Io::Read { .. } | Io::ReadTagged { .. } => RequestType::Read,
            Io::Write { .. } | Io::WriteTagged { .. } => {
                flags.set(CommandFlags::FUA, self.has_fua(export));
                RequestType::Write
            }
            Io::Flush => RequestType::Flush,
            Io::Discard { .. } => RequestType::Trim,
            Io::Zero { punch, .. } => {
                flags.set(CommandFlags::NO_HOLE, !punch);
                flags.set(CommandFlags::FAST_ZERO, has(TransmissionFlags::SEND_FAST_ZERO));
                RequestType::WriteZeroes
            }
            Io::Prefetch { .. } => RequestType::Cache,
        };
        RequestHeader {
            flags,
            command,
            cookie: cookie(index, self.generation),
            offset: self.offset(),
            // A piece has at most 2^30 bytes.
            length: u32::try_from(self.piece).unwrap_or(u32::MAX),
        }
    }

    /// The bytes of a write.
    pub(super) fn payload(&self) -> &[u8] {
        match &self.io {
            Io::Write { buffer, range, .. } if !self.flushes => {
                let (done, piece) = (length(self.done), length(self.piece));
                &buffer[range.start + done..range.start + done + piece]
            }
            _ => &[],
        }
    }

    /// The memory for `len` bytes from byte `from` of a read's piece.
    pub(super) fn place(&mut self, from: usize, len: usize) -> Option<&mut [u8]> {
        let (done, piece) = (length(self.done), length(self.piece));
        let Io::Read { buffer, range, .. } = &mut self.io else { return None };
        let end = from.checked_add(len).filter(|&end| end <= piece)?;
        buffer.get_mut(range.start + done + from..range.start + done + end)
    }

    /// Ends the request.
    pub(super) fn over(self, result: Result<(), (Errno, &str)>) -> (usize, Finished) {
        let kind = self.io.kind();
        let offset = self.io.extent().0 + self.done;
        let result = result.map_err(|(errno, why)| kind.failed(offset, why, errno));
        (self.member, Finished::of(self.slot, self.io, result))
    }
}

/// A length within a buffer.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The cookie of a question: the request's number and the question's generation.
fn cookie(index: u32, generation: u32) -> Cookie {
    (u64::from(generation) << 32 | u64::from(index)).to_be_bytes()
}

/// The request's number and the question's generation in a cookie.
pub(super) fn named(cookie: Cookie) -> (usize, u32) {
    let [a, b, c, d, rest @ ..] = cookie;
    (u32::from_be_bytes(rest) as usize, u32::from_be_bytes([a, b, c, d]))
}

/// The answered parts of a read: none twice, and in the end all.
#[derive(Debug, Default)]
pub(super) struct AnsweredRanges(Vec<(usize, usize)>);

impl AnsweredRanges {
    fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds `from..to`. False when a part of it was added already, or there are too many parts.
    pub(super) fn add(&mut self, from: usize, to: usize) -> bool {
        let at = self.0.partition_point(|&(start, _)| start < from);
        let touches_next = self.0.get(at).is_some_and(|&(start, _)| start == to);
        if self.0.get(at).is_some_and(|&(start, _)| start < to) {
            return false;
        }
        match at.checked_sub(1).map(|before| self.0[before]) {
            Some((_, end)) if end > from => false,
            Some((start, end)) if end == from => {
                let to = if touches_next { self.0.remove(at).1 } else { to };
                self.0[at - 1] = (start, to);
                true
            }
            _ if touches_next => {
                self.0[at].0 = from;
                true
            }
            _ if self.0.len() == MOST_PIECES => false,
            _ => {
                self.0.insert(at, (from, to));
                true
            }
        }
    }

    pub(super) fn is_whole(&self, len: u64) -> bool {
        self.0 == [(0, length(len))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_covered_is_what_was_added_once(parts in prop::collection::vec((0usize..64, 1usize..16), 1..40)) {
            let mut covered = AnsweredRanges::default();
            let mut model = [false; 80];
            for (from, len) in parts {
                let free = !model[from..from + len].contains(&true);
                prop_assert_eq!(covered.add(from, from + len), free);
                if free {
                    model[from..from + len].fill(true);
                }
                let whole = (1..=80).find(|&n| model[..n] == vec![true; n] && !model[n..].contains(&true));
                for n in 1..=80 {
                    prop_assert_eq!(covered.is_whole(n as u64), whole == Some(n));
                }
            }
        }
    }
}
