//! The piece of a request that is under way: found once, when it begins.

use std::ops::Range;

use underseal_cipher::{BadSector, InOutBuf, SectorCipher};
use underseal_volume::{SegmentKind, Stored, Volume};

use crate::slot::{Op, Slot, Stage};
use crate::{Error, ErrorKind, Result};

/// Encrypted zeros are made and written in pieces of this many bytes.
pub(crate) const ZEROS: u64 = 1 << 20;

/// What is at a piece's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Stored,
    Zero,
    Error,
}

/// A run of bytes in one segment, under the volume that its request has pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    /// Its number: a reference to its cipher would be counted on a cache line that all queues share.
    pub(crate) segment: usize,
    /// The lower device, where it is stored.
    pub(crate) device: usize,
    /// Where it begins there.
    pub(crate) lower: u64,
    /// Its first sector, as the cipher counts.
    sector: u64,
    /// Where it begins in the volume.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Where it begins in the request's memory.
    from: usize,
}

impl Piece {
    /// Before the first one.
    pub(crate) const NONE: Self =
        Self { place: Place::Zero, segment: 0, device: 0, lower: 0, sector: 0, at: 0, len: 0, from: 0 };

    /// The next piece of a request. None: the volume ends before it.
    pub(crate) fn next_of(slot: &Slot, volume: &Volume) -> Option<Self> {
        match slot.op {
            // The memory holds one piece at a time; there was less of it when others had the rest.
            Op::WriteZeros => {
                let most = match &slot.stage {
                    Stage::Ready(Some(memory)) => memory.len() as u64,
                    _ => ZEROS,
                };
                Self::find(volume, slot.at, slot.end.min(slot.at + most), slot.at)
            }
            _ => Self::find(volume, slot.at, slot.end.min(slot.at.saturating_add(slot.most)), slot.start),
        }
    }

    /// The piece from `at` to `end` or the segment's end; the memory's first byte is the volume's byte `base`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "ranges with memory are shorter than the address space"
    )]
    pub(crate) fn find(volume: &Volume, at: u64, end: u64, base: u64) -> Option<Self> {
        let number = volume.segment_index(at)?;
        let segment = &volume.segments()[number];
        let (len, from) = (end.min(segment.end()) - at, (at - base) as usize);
        let here = Self { segment: number, at, len, from, ..Self::NONE };
        Some(match &segment.kind {
            SegmentKind::Zero => here,
            SegmentKind::Error => Self { place: Place::Error, ..here },
            SegmentKind::Stored(Stored { device, lower, iv_offset, .. }) => {
                let into = at - segment.start;
                let sector = (into >> 9).wrapping_add(*iv_offset);
                Self { place: Place::Stored, device: *device, lower: lower + into, sector, ..here }
            }
        })
    }

    /// Where it ends in the volume.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len
    }

    /// Where its bytes are in the request's memory.
    #[expect(clippy::cast_possible_truncation, reason = "as in `find`")]
    pub(crate) fn range(&self) -> Range<usize> {
        self.from..self.from + self.len as usize
    }

    /// The sector that begins at `place` in the request's memory, as the cipher counts.
    pub(crate) fn sector(&self, place: usize) -> u64 {
        self.sector.wrapping_add((place - self.from) as u64 >> 9)
    }

    /// Encrypts a part of the request's memory that belongs to the piece.
    pub(crate) fn encrypt(&self, volume: &Volume, memory: &mut [u8], range: Range<usize>) -> Result<()> {
        let (cipher, first) = (self.cipher(volume)?, self.sector(range.start));
        let sealed = cipher.seal(first, InOutBuf::from(&mut memory[range.clone()]), &mut []);
        sealed.map_err(|bad| self.broken(volume, range.start, bad))
    }

    /// Decrypts a part of the request's memory that belongs to the piece.
    pub(crate) fn decrypt(&self, volume: &Volume, memory: &mut [u8], range: Range<usize>) -> Result<()> {
        let (cipher, first) = (self.cipher(volume)?, self.sector(range.start));
        let opened = cipher.open(first, InOutBuf::from(&mut memory[range.clone()]), &[]);
        opened.map_err(|bad| self.broken(volume, range.start, bad))
    }

    /// Only what is stored has one.
    fn cipher<'v>(&self, volume: &'v Volume) -> Result<&'v dyn SectorCipher> {
        volume.segments()[self.segment].as_stored().map(|stored| &*stored.cipher).ok_or_else(|| self.error())
    }

    /// The cipher refuses a sector of those from `place` in the request's memory on.
    fn broken(&self, volume: &Volume, place: usize, bad: BadSector) -> Error {
        let size = volume.segments()[self.segment].sector_size().bytes();
        let at = self.at + (place - self.from + bad.0 * size) as u64;
        let context = format!("the sector at byte {at} is not as it was written");
        Error::new(ErrorKind::Integrity, context)
    }

    /// Whether its bytes are stored as they are.
    pub(crate) fn is_null(&self, volume: &Volume) -> bool {
        volume.segments()[self.segment].as_stored().is_none_or(|stored| stored.cipher.is_null())
    }

    /// It lies where nothing can be.
    pub(crate) fn error(&self) -> Error {
        let context = format!("bytes {} + {}: an error segment, as its table says", self.at, self.len);
        Error::new(ErrorKind::Lower, context)
    }
}
