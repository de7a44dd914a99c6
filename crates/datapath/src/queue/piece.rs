//! The piece of a request that is next.

use std::ops::Range;

use underseal_cipher::InOutBuf;
use underseal_volume::{Segment, SegmentKind, Volume};

use super::admit::ZEROS;
use crate::slot::{Job, Slot};
use crate::{Error, ErrorKind};

/// A piece lies in one segment.
pub(super) struct Piece {
    /// Its number: cloning the segment would count references on a cache line that all queues share.
    pub(super) segment: usize,
    /// Where it begins in the volume.
    pub(super) at: u64,
    pub(super) len: u64,
    /// Where its bytes are in the request's buffer.
    pub(super) range: Range<usize>,
}

/// Where a piece lies.
pub(super) enum Place {
    /// The lower device of this number.
    On(usize),
    Zero,
    Error,
}

impl Piece {
    /// The next piece of a request.
    pub(super) fn of(volume: &Volume, slot: &Slot) -> Option<Self> {
        match slot.job {
            // The buffer holds one piece at a time.
            Job::WriteZeros => Self::at(volume, slot.at, slot.end.min(slot.at + ZEROS), slot.at),
            _ => Self::at(volume, slot.at, slot.end.min(slot.at.saturating_add(slot.most)), slot.start),
        }
    }

    /// The piece from `at` to `end` or the segment's end; the buffer's first byte is the volume's byte `base`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "ranges with a buffer are shorter than the address space"
    )]
    pub(super) fn at(volume: &Volume, at: u64, end: u64, base: u64) -> Option<Self> {
        let segment = volume.segment_index(at)?;
        let len = end.min(volume.segments()[segment].end()) - at;
        let from = (at - base) as usize;
        Some(Self { segment, at, len, range: from..from + len as usize })
    }

    pub(super) fn segment<'v>(&self, volume: &'v Volume) -> &'v Segment {
        &volume.segments()[self.segment]
    }

    /// Where it begins on the lower device.
    pub(super) fn lower(&self, volume: &Volume) -> u64 {
        self.segment(volume).lower(self.at).map_or(0, |(_, offset)| offset)
    }

    /// The lower device of a piece that lies on one.
    pub(super) fn device(&self, volume: &Volume) -> usize {
        self.segment(volume).as_stored().map_or(0, |stored| stored.device)
    }

    pub(super) fn place(&self, volume: &Volume) -> Place {
        match &self.segment(volume).kind {
            SegmentKind::Stored(stored) => Place::On(stored.device),
            SegmentKind::Zero => Place::Zero,
            SegmentKind::Error => Place::Error,
        }
    }

    pub(super) fn error(&self) -> Error {
        let context = format!("bytes {} + {}: an error segment, as its table says", self.at, self.len);
        Error::new(ErrorKind::Lower, context)
    }

    pub(super) fn encrypt(&self, volume: &Volume, bytes: &mut [u8]) {
        if let Some((cipher, sector)) = self.segment(volume).cipher(self.at) {
            cipher.encrypt(sector, InOutBuf::from(bytes));
        }
    }

    pub(super) fn decrypt(&self, volume: &Volume, bytes: &mut [u8]) {
        if let Some((cipher, sector)) = self.segment(volume).cipher(self.at) {
            cipher.decrypt(sector, InOutBuf::from(bytes));
        }
    }
}
