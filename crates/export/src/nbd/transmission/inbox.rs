//! Received bytes that are not parsed yet.

use std::io;

use underseal_datapath::Buffer;
use underseal_device::Arena;

use super::wire::Wire;
use crate::nbd::protocol::REQUEST_LEN;
use crate::{Error, ErrorKind, Result};

/// The longest receive: many small requests, or the beginning of a large one.
const ROOM: usize = 256 << 10;

/// Payloads up to this length are encrypted and written from the inbox; longer ones get separate
/// memory.
pub(super) const IN_PLACE: usize = 64 << 10;

const _: () = assert!(ROOM >= 2 * (IN_PLACE + REQUEST_LEN));

/// A window of the stream: headers, and the payloads of small writes, which are encrypted in place.
pub(super) struct Inbox {
    /// Memory of a separate arena, since clients' data stay out of core dumps.
    bytes: Buffer,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new() -> Result<Self> {
        let none =
            || Error::new(ErrorKind::Io, format!("no memory for {ROOM} bytes of a connection's inbox"));
        let mut arena = Arena::new(ROOM).map_err(|e| none().with_source(e))?;
        Ok(Self { bytes: arena.alloc(ROOM).ok_or_else(none)?, start: 0, end: 0 })
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns all received bytes that are not taken.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the next header, if it has arrived.
    pub(super) fn header(&self) -> Option<&[u8; REQUEST_LEN]> {
        self.bytes[self.start..self.end].first_chunk()
    }

    /// Returns the next header's payload, if it has arrived completely.
    pub(super) fn payload(&mut self, len: usize) -> Option<&mut [u8]> {
        let from = self.start + REQUEST_LEN;
        (self.end >= from + len).then(|| &mut self.bytes[from..from + len])
    }

    /// Takes up to `len` bytes out.
    pub(super) fn take(&mut self, len: usize) -> &[u8] {
        let from = self.start;
        self.start = self.end.min(from + len);
        &self.bytes[from..self.start]
    }

    /// Receives up to `most` bytes behind the present ones, and returns their number; 0 is the end
    /// of the stream.
    pub(super) fn fill(&mut self, wire: &mut Wire, most: usize) -> io::Result<usize> {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.start < IN_PLACE + REQUEST_LEN {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
        let room = (self.bytes.len() - self.end).min(most);
        let n = wire.receive(&mut self.bytes[self.end..self.end + room])?;
        self.end += n;
        Ok(n)
    }
}
