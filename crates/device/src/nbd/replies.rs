//! Parsing of a server's replies: each value is checked before it is used.
//!
//! ```text
//!   socket -> ReplyInbox -> simple reply | chunk -> the request that its cookie names
//!                 \--- a read's bytes go straight into its buffer, if possible from the socket
//! ```

use underseal_nbd_protocol::{
    CHUNK_HEADER_LEN, Cookie, Errno, MAX_STRING, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk,
};

use super::flight::{NbdRequest, named};

/// Bytes received at a time while no read's bytes are expected.
const INBOX: usize = 64 << 10;
/// The longest chunk that is parsed as a whole: an error with the longest message.
const LONGEST_ERROR: usize = 6 + MAX_STRING + 8;
const _: () = assert!(CHUNK_HEADER_LEN + LONGEST_ERROR < INBOX, "every message fits");

/// A violation of the protocol, which ends the connection.
pub(super) type Violation = &'static str;

/// The source of the bytes: a socket, or a script in tests.
pub(super) trait ReplySource {
    /// Fills one buffer and then the other with the available bytes. `Ok(0)` is the end.
    fn fill(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, rustix::io::Errno>;
}

/// Received bytes that are not parsed yet.
pub(super) struct ReplyInbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The read whose bytes come next.
    payload: Option<Payload>,
}

/// Bytes of a read that are still to come.
#[derive(Clone, Copy)]
struct Payload {
    index: usize,
    /// The place of these bytes in the read's piece.
    at: usize,
    left: usize,
    /// The reply ends with these bytes.
    last: bool,
}

/// The result of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyOutcome {
    Done,
    Failed(u32),
}

/// The result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    /// The buffers are full: there may be more.
    Full,
    /// The buffers are not full.
    Short,
    /// The server closed the connection.
    End,
}

impl ReplyInbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INBOX].into(), start: 0, end: 0, payload: None }
    }

    /// Drops all bytes, for a new connection.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.payload) = (0, 0, None);
    }

    /// Receives the available bytes. A read's bytes go to its buffer.
    pub(super) fn receive(
        &mut self,
        from: &mut impl ReplySource,
        flights: &mut [Option<NbdRequest>],
    ) -> Result<ReceiveOutcome, rustix::io::Errno> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = &mut self.bytes[self.end..];
        let mut none: [u8; 0] = [];
        let place = self.payload.and_then(|p| flights.get_mut(p.index)?.as_mut()?.place(p.at, p.left));
        let place = place.unwrap_or(&mut none);
        let (direct, room) = (place.len(), place.len() + free.len());
        let received = from.fill(place, free)?;
        let to_place = received.min(direct);
        if let Some(payload) = &mut self.payload {
            payload.at += to_place;
            payload.left -= to_place;
        }
        self.end += received - to_place;
        Ok(match received {
            0 => ReceiveOutcome::End,
            n if n == room => ReceiveOutcome::Full,
            _ => ReceiveOutcome::Short,
        })
    }

    /// Returns the next whole reply: the request's index and the result.
    pub(super) fn next(
        &mut self,
        flights: &mut [Option<NbdRequest>],
        structured: bool,
    ) -> Result<Option<(usize, ReplyOutcome)>, Violation> {
        loop {
            if let Some(payload) = self.payload {
                match self.take_payload(payload, flights)? {
                    None => return Ok(None),
                    Some(Some(answer)) => return Ok(Some((payload.index, answer))),
                    Some(None) => continue,
                }
            }
            let bytes = &self.bytes[self.start..self.end];
            let Some(&magic) = bytes.first_chunk::<4>() else { return Ok(None) };
            let answer = match u32::from_be_bytes(magic) {
                SIMPLE_REPLY_MAGIC => self.simple(flights, structured)?,
                STRUCTURED_REPLY_MAGIC if structured => self.chunk(flights)?,
                _ => return Err("a reply does not begin with its magic"),
            };
            match answer {
                Parsed::Incomplete => return Ok(None),
                Parsed::More => {}
                Parsed::Answer(index, answer) => return Ok(Some((index, answer))),
            }
        }
    }

    /// Moves received bytes of a read to its buffer. `None`: more must come. `Some(Some(..))`: the
    /// reply ends with them.
    #[expect(clippy::option_option, reason = "wait, go on, answer")]
    fn take_payload(
        &mut self,
        mut payload: Payload,
        flights: &mut [Option<NbdRequest>],
    ) -> Result<Option<Option<ReplyOutcome>>, Violation> {
        let here = payload.left.min(self.end - self.start);
        let flight = flights.get_mut(payload.index).and_then(Option::as_mut).ok_or(UNKNOWN)?;
        let place = flight.place(payload.at, here).ok_or(UNKNOWN)?;
        place.copy_from_slice(&self.bytes[self.start..self.start + here]);
        self.start += here;
        payload.at += here;
        payload.left -= here;
        self.payload = Some(payload).filter(|p| p.left > 0);
        if self.payload.is_some() {
            return Ok(None);
        }
        Ok(Some(if payload.last { Some(verdict(flight)?) } else { None }))
    }

    fn simple(&mut self, flights: &mut [Option<NbdRequest>], structured: bool) -> Result<Parsed, Violation> {
        let Some(&header) = self.bytes[self.start..self.end].first_chunk::<SIMPLE_REPLY_LEN>() else {
            return Ok(Parsed::Incomplete);
        };
        self.start += SIMPLE_REPLY_LEN;
        let (error, cookie) = (u32_at(&header, 4), cookie_at(&header, 8));
        let (index, flight) = find(flights, cookie)?;
        if error != 0 {
            return Ok(Parsed::Answer(index, ReplyOutcome::Failed(error)));
        }
        if !flight.is_read() {
            return Ok(Parsed::Answer(index, ReplyOutcome::Done));
        }
        if structured {
            return Err("a read is answered in the way that was not agreed");
        }
        let len = usize::try_from(flight.piece).map_err(|_| UNKNOWN)?;
        flight.covered.add(0, len);
        self.payload = Some(Payload { index, at: 0, left: len, last: true });
        Ok(Parsed::More)
    }

    fn chunk(&mut self, flights: &mut [Option<NbdRequest>]) -> Result<Parsed, Violation> {
        let bytes = &self.bytes[self.start..self.end];
        let Some(header) = bytes.first_chunk::<CHUNK_HEADER_LEN>() else { return Ok(Parsed::Incomplete) };
        let body = &bytes[CHUNK_HEADER_LEN..];
        let (flags, kind) = (u16_at(header, 4), u16_at(header, 6));
        let len = u32_at(header, 16) as usize;
        let last = flags & chunk::DONE != 0;
        let (index, flight) = find(flights, cookie_at(header, 8))?;
        let mut used = len;
        match kind {
            chunk::NONE if len == 0 && last => {}
            chunk::OFFSET_DATA if len > 8 && flight.is_read() => {
                if body.len() < 8 {
                    return Ok(Parsed::Incomplete);
                }
                let (at, left) = cover(flight, u64_at(body, 0), len - 8)?;
                self.payload = Some(Payload { index, at, left, last });
                used = 8;
            }
            chunk::OFFSET_HOLE if len == 12 && flight.is_read() => {
                if body.len() < 12 {
                    return Ok(Parsed::Incomplete);
                }
                let (at, hole) = cover(flight, u64_at(body, 0), u32_at(body, 8) as usize)?;
                flight.place(at, hole).ok_or(OUTSIDE)?.fill(0);
            }
            kind if kind & chunk::IS_ERROR != 0 && (6..=LONGEST_ERROR).contains(&len) => {
                if body.len() < len {
                    return Ok(Parsed::Incomplete);
                }
                // An error without a number is still an error.
                let number = Some(u32_at(body, 0)).filter(|&n| n != 0).unwrap_or(Errno::Io.number());
                flight.error.get_or_insert(number);
            }
            _ => return Err("a chunk of a reply is none that was asked for"),
        }
        self.start += CHUNK_HEADER_LEN + used;
        if self.payload.is_some() || !last {
            return Ok(Parsed::More);
        }
        Ok(Parsed::Answer(index, verdict(flight)?))
    }
}

enum Parsed {
    Incomplete,
    /// A part was parsed, and the reply continues.
    More,
    Answer(usize, ReplyOutcome),
}

const UNKNOWN: Violation = "a reply to a request that was not made";
const OUTSIDE: Violation = "a part of a reply lies outside of what was asked for";

/// The result of a whole reply.
fn verdict(flight: &NbdRequest) -> Result<ReplyOutcome, Violation> {
    match flight.error {
        Some(error) => Ok(ReplyOutcome::Failed(error)),
        None if flight.is_read() && !flight.covered.is_whole(flight.piece) => {
            Err("a read was answered in part only")
        }
        None => Ok(ReplyOutcome::Done),
    }
}

/// Finds the request that a cookie names, if it waits for a reply.
fn find(flights: &mut [Option<NbdRequest>], cookie: Cookie) -> Result<(usize, &mut NbdRequest), Violation> {
    let (index, generation) = named(cookie);
    let flight = flights.get_mut(index).and_then(Option::as_mut);
    let flight = flight.filter(|flight| flight.generation == generation && flight.is_sent);
    flight.map(|flight| (index, flight)).ok_or(UNKNOWN)
}

/// Notes that a part of a read is answered, and returns its place in the piece.
fn cover(flight: &mut NbdRequest, offset: u64, len: usize) -> Result<(usize, usize), Violation> {
    let at = offset.checked_sub(flight.offset()).ok_or(OUTSIDE)?;
    if len == 0 || at > flight.piece || len as u64 > flight.piece - at {
        return Err(OUTSIDE);
    }
    let at = usize::try_from(at).map_err(|_| OUTSIDE)?;
    if !flight.covered.add(at, at + len) {
        return Err("a part of a read is answered twice");
    }
    Ok((at, len))
}

fn cookie_at(bytes: &[u8], at: usize) -> Cookie {
    u64_at(bytes, at).to_be_bytes()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Reads a number; the caller has checked the length.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
