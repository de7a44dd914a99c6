//! The piece of a request that is in progress: found once, when it begins.

use std::ops::Range;

use underseal_cipher::{BadSector, InOutBuf, SectorCipher};
use underseal_device::{Channel, Immediate};
use underseal_volume::{SegmentKind, Stored, Volume};

use crate::shared::SharedView;
use crate::slot::{Slot, SlotOperation, SlotStage};
use crate::{Error, ErrorKind};

/// Encrypted zeros are made and written in pieces of this many bytes.
pub(crate) const ZEROS: u64 = 1 << 20;

/// The content of a segment at a piece's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Stored,
    Zero,
    Error,
}

/// The longest piece while the lower device answers at once: it stays in the second-level cache
/// between I/O and cipher. Where the client's bytes are elsewhere, all pieces use the same memory.
pub(crate) const CACHED: u64 = 128 << 10;

/// A run of bytes in one segment, under the volume that its request has pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) place: PieceKind,
    /// The segment's number: a reference to its cipher would be counted on a cache line that all
    /// queues share.
    pub(crate) segment: usize,
    /// The number of the lower device, for a stored piece.
    pub(crate) device: usize,
    /// The piece's first byte on the lower device.
    pub(crate) lower: u64,
    /// The first sector's number, for the cipher.
    sector: u64,
    /// The first byte in the volume.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The first byte in the request's memory.
    from: usize,
    /// Bytes of the tuples of the piece's sectors; 0 without tuples.
    pub(crate) tags: usize,
}

/// Why a piece was not encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CryptoFailure {
    /// The cipher refuses the sector at this byte of the volume.
    Refused(u64),
    /// Shared memory was gone before its bytes were encrypted.
    Lost,
}

impl From<CryptoFailure> for Error {
    fn from(failure: CryptoFailure) -> Self {
        match failure {
            CryptoFailure::Refused(at) => {
                Self::new(ErrorKind::Integrity, format!("the sector at byte {at} is not as it was written"))
            }
            CryptoFailure::Lost => Self::new(ErrorKind::Memory, "the client's memory is gone"),
        }
    }
}

impl Piece {
    /// The value before the first piece.
    pub(crate) const NONE: Self = Self {
        place: PieceKind::Zero,
        segment: 0,
        device: 0,
        lower: 0,
        sector: 0,
        at: 0,
        len: 0,
        from: 0,
        tags: 0,
    };

    /// Finds the next piece of a request. `None`: the volume ends before it.
    pub(crate) fn next_of(slot: &Slot, volume: &Volume) -> Option<Self> {
        let piece = match slot.op {
            // The memory holds one piece at a time; it can be smaller than [`ZEROS`] when memory
            // was short.
            SlotOperation::WriteZeros => {
                let most = match &slot.stage {
                    SlotStage::Ready(Some(memory)) => memory.len() as u64,
                    _ => ZEROS,
                };
                Self::find(volume, slot.at, slot.end.min(slot.at + most), slot.at)
            }
            _ if slot.is_cached() => {
                let base = if slot.direct().is_some() { slot.at } else { slot.start };
                Self::find(volume, slot.at, slot.end.min(slot.at + slot.most.min(CACHED)), base)
            }
            _ => Self::find(volume, slot.at, slot.end.min(slot.at.saturating_add(slot.most)), slot.start),
        };
        piece.map(|piece| if slot.tags.is_some() { piece.with_tags(volume) } else { piece })
    }

    /// Extends a piece of a request with cached pieces to the rest of the segment, after the lower
    /// device did not take the piece at once.
    pub(crate) fn with_rest(self, slot: &Slot, volume: &Volume) -> Self {
        let end = slot.end.min(slot.at.saturating_add(slot.most));
        Self::find(volume, self.at, end, self.at - self.from as u64).unwrap_or(self)
    }

    /// Sets the piece's tuple bytes, for a volume that may have tuples.
    pub(crate) fn with_tags(self, volume: &Volume) -> Self {
        let tags = |stored: &Stored| {
            self.range().len() / stored.cipher.sector_size().bytes() * stored.cipher.tag_size()
        };
        Self { tags: volume.segments()[self.segment].as_stored().map_or(0, tags), ..self }
    }

    /// Finds the piece from `at` to `end` or the segment's end; the memory's first byte is the
    /// volume's byte `base`.
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
            SegmentKind::Error => Self { place: PieceKind::Error, ..here },
            SegmentKind::Stored(Stored { device, lower, iv_offset, .. }) => {
                let into = at - segment.start;
                let sector = (into >> 9).wrapping_add(*iv_offset);
                Self { place: PieceKind::Stored, device: *device, lower: lower + into, sector, ..here }
            }
        })
    }

    /// Returns the part of the piece behind `first`, which begins where the piece does.
    pub(crate) fn behind(self, first: &Self) -> Self {
        let skip = first.len.min(self.len);
        #[expect(clippy::cast_possible_truncation, reason = "as in `find`")]
        let from = self.from + skip as usize;
        Self {
            lower: self.lower + skip,
            sector: self.sector.wrapping_add(skip >> 9),
            at: self.at + skip,
            len: self.len - skip,
            from,
            ..self
        }
    }

    /// The end in the volume.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len
    }

    /// The piece's range in the request's memory.
    #[expect(clippy::cast_possible_truncation, reason = "as in `find`")]
    pub(crate) fn range(&self) -> Range<usize> {
        self.from..self.from + self.len as usize
    }

    /// The number of the sector at `place` in the request's memory, for the cipher.
    pub(crate) fn sector(&self, place: usize) -> u64 {
        self.sector.wrapping_add((place - self.from) as u64 >> 9)
    }

    /// Reads the piece, and its tuples if it has them, as far as possible without blocking.
    pub(crate) fn read_now(
        &self,
        channel: &mut dyn Channel,
        memory: &mut [u8],
        tags: &mut [u8],
    ) -> Immediate {
        let bytes = &mut memory[self.range()];
        match self.tags {
            0 => channel.read_now(self.lower, bytes),
            len => channel.read_tagged_now(self.lower, bytes, &mut tags[..len]),
        }
    }

    /// Writes the piece, as [`read_now`](Self::read_now).
    pub(crate) fn write_now(&self, channel: &mut dyn Channel, memory: &[u8], tags: &[u8]) -> Immediate {
        let bytes = &memory[self.range()];
        match self.tags {
            0 => channel.write_now(self.lower, bytes),
            len => channel.write_tagged_now(self.lower, bytes, &tags[..len]),
        }
    }

    /// Encrypts the piece in the request's memory, or from shared bytes to there, and makes its
    /// tuples.
    pub(crate) fn encrypt(
        &self,
        volume: &Volume,
        shared: Option<&SharedView>,
        memory: &mut [u8],
        tags: &mut [u8],
    ) -> Result<(), CryptoFailure> {
        let tags = &mut tags[..self.tags];
        match shared {
            None => self.seal(volume, memory, self.range(), tags),
            Some(shared) => self.seal_from(volume, shared, memory, tags),
        }
    }

    /// Decrypts the piece in the request's memory, or from there to shared bytes, if its tuples
    /// match.
    pub(crate) fn decrypt(
        &self,
        volume: &Volume,
        shared: Option<&SharedView>,
        memory: &mut [u8],
        tags: &[u8],
    ) -> Result<(), CryptoFailure> {
        let tags = &tags[..self.tags];
        match shared {
            None => self.open(volume, memory, self.range(), tags),
            Some(shared) => self.open_to(volume, shared, memory, tags),
        }
    }

    /// Encrypts the piece from shared bytes. A sector that spans two runs of shared bytes is
    /// copied.
    fn seal_from(
        &self,
        volume: &Volume,
        shared: &SharedView,
        memory: &mut [u8],
        tags: &mut [u8],
    ) -> Result<(), CryptoFailure> {
        let Some(cipher) = self.cipher(volume) else { return Err(CryptoFailure::Refused(self.at)) };
        let (base, from) = (shared.offset(self.at), self.from);
        let (sector, tag) = (cipher.sector_size().bytes(), cipher.tag_size());
        let (mut rest, mut tuples) = (&mut memory[self.range()], tags);
        let mut done = 0;
        while !rest.is_empty() {
            let source = shared.bytes.source(base + done, rest.len());
            let whole = source.map_or(0, |source| source.len() / sector * sector);
            let len = whole.max(sector).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            let (its, others) = tuples.split_at_mut(len / sector * tag);
            let first = self.sector(from + done);
            let sealed = match source {
                Some(source) if whole > 0 => cipher.seal_from(first, source.split_at(whole).0, now, its),
                _ => {
                    shared.bytes.copy_to(base + done, now);
                    cipher.seal(first, InOutBuf::from(&mut *now), its)
                }
            };
            sealed.map_err(|bad| self.refused(volume, from + done, bad))?;
            (rest, tuples, done) = (later, others, done + len);
        }
        if shared.bytes.is_lost() { Err(CryptoFailure::Lost) } else { Ok(()) }
    }

    /// Decrypts the piece to shared bytes, as [`seal_from`](Self::seal_from).
    fn open_to(
        &self,
        volume: &Volume,
        shared: &SharedView,
        memory: &mut [u8],
        tags: &[u8],
    ) -> Result<(), CryptoFailure> {
        let Some(cipher) = self.cipher(volume) else { return Err(CryptoFailure::Refused(self.at)) };
        let (base, from) = (shared.offset(self.at), self.from);
        let (sector, tag) = (cipher.sector_size().bytes(), cipher.tag_size());
        let (mut rest, mut tuples) = (&mut memory[self.range()], tags);
        let mut done = 0;
        while !rest.is_empty() {
            let destination = shared.bytes.destination(base + done, rest.len());
            let whole = destination.map_or(0, |destination| destination.len() / sector * sector);
            let len = whole.max(sector).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            let (its, others) = tuples.split_at(len / sector * tag);
            let first = self.sector(from + done);
            let opened = match destination {
                Some(destination) if whole > 0 => {
                    cipher.open_to(first, now, destination.split_at(whole).0, its)
                }
                _ => cipher
                    .open(first, InOutBuf::from(&mut *now), its)
                    .map(|()| shared.bytes.copy_from(base + done, now)),
            };
            opened.map_err(|bad| self.refused(volume, from + done, bad))?;
            (rest, tuples, done) = (later, others, done + len);
        }
        Ok(())
    }

    /// Encrypts a part of the piece, with the tuples of that part.
    pub(crate) fn seal(
        &self,
        volume: &Volume,
        memory: &mut [u8],
        range: Range<usize>,
        tags: &mut [u8],
    ) -> Result<(), CryptoFailure> {
        let Some(cipher) = self.cipher(volume) else { return Err(CryptoFailure::Refused(self.at)) };
        let (first, data) = (self.sector(range.start), InOutBuf::from(&mut memory[range.clone()]));
        cipher.seal(first, data, tags).map_err(|bad| self.refused(volume, range.start, bad))
    }

    /// Decrypts a part of the piece, as [`seal`](Self::seal).
    pub(crate) fn open(
        &self,
        volume: &Volume,
        memory: &mut [u8],
        range: Range<usize>,
        tags: &[u8],
    ) -> Result<(), CryptoFailure> {
        let Some(cipher) = self.cipher(volume) else { return Err(CryptoFailure::Refused(self.at)) };
        let (first, data) = (self.sector(range.start), InOutBuf::from(&mut memory[range.clone()]));
        cipher.open(first, data, tags).map_err(|bad| self.refused(volume, range.start, bad))
    }

    /// The piece's cipher. Only stored pieces have one, and only these are encrypted.
    fn cipher<'v>(&self, volume: &'v Volume) -> Option<&'v dyn SectorCipher> {
        volume.segments()[self.segment].as_stored().map(|stored| &*stored.cipher)
    }

    /// The failure of a sector that the cipher refuses, counted from `place` in the request's
    /// memory.
    fn refused(&self, volume: &Volume, place: usize, bad: BadSector) -> CryptoFailure {
        let size = volume.segments()[self.segment].sector_size().bytes();
        CryptoFailure::Refused(self.at + (place - self.from + bad.0 * size) as u64)
    }

    /// True when the piece's bytes are stored unencrypted.
    pub(crate) fn is_null(&self, volume: &Volume) -> bool {
        volume.segments()[self.segment].as_stored().is_none_or(|stored| stored.cipher.is_null())
    }

    /// The error of a piece in an error segment.
    pub(crate) fn error(&self) -> Error {
        let context = format!("bytes {} + {}: an error segment, as its table says", self.at, self.len);
        Error::new(ErrorKind::Lower, context)
    }
}
