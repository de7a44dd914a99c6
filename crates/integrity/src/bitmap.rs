//! The bitmap: which regions may have tags that do not fit their data after a power cut. It lies where the journal would.

use std::ops::Range;

use crate::disk::{self, Disk};
use crate::{Error, ErrorKind, Result, VolumeGeometry};

/// The kernel's default: log2 of the sectors of a bit.
const DEFAULT_LOG2: u32 = 15;
/// What is written at once.
const UNIT: usize = 4096;
/// More than any volume needs at a bit for each 32768 sectors; what claims more is not believed.
const MOST: u64 = 256 << 20;

/// A bit for each region of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    bits: Vec<u8>,
    /// log2 of the sectors of a bit.
    log2: u32,
    sectors: u64,
    offset: u64,
}

impl Bitmap {
    /// log2 of the blocks of a bit: as asked for, but a block at least, and as many as the journal's area has room for.
    pub fn granularity(geometry: &VolumeGeometry, sectors_per_bit: Option<u64>) -> u8 {
        let block = geometry.block_sectors().ilog2();
        let asked = sectors_per_bit.map_or(DEFAULT_LOG2, |sectors| sectors.max(1).ilog2());
        let room = (geometry.journal_bytes() * 8).min(u64::from(u32::MAX));
        let mut log2 = asked.max(block);
        while room > 0 && log2 < 63 && geometry.provided().div_ceil(1 << log2) > room {
            log2 += 1;
        }
        u8::try_from(log2 - block).unwrap_or(u8::MAX)
    }

    /// A bitmap with nothing set, of `2^log2_blocks` blocks a bit.
    ///
    /// # Errors
    /// `BadSuperblock` for a granularity that has no room; `Memory` for a bitmap that is too large.
    pub fn new(geometry: &VolumeGeometry, log2_blocks: u8) -> Result<Self> {
        let log2 = u32::from(log2_blocks) + geometry.block_sectors().ilog2();
        let count = if log2 < 64 { geometry.provided().div_ceil(1 << log2) } else { 1 };
        let bytes = count.div_ceil(8).next_multiple_of(UNIT as u64);
        if count > geometry.journal_bytes() * 8 {
            let context =
                format!("a bitmap of {count} bits has no room in {} bytes", geometry.journal_bytes());
            return Err(Error::new(ErrorKind::BadSuperblock, context));
        }
        let too_large = || {
            let context =
                format!("a bitmap of {count} bits takes too much memory: give each bit more sectors");
            Error::new(ErrorKind::Memory, context)
        };
        let bytes = usize::try_from(bytes).ok().filter(|_| bytes <= MOST).ok_or_else(too_large)?;
        let mut bits = Vec::new();
        bits.try_reserve_exact(bytes).map_err(|e| too_large().with_source(e))?;
        bits.resize(bytes, 0);
        Ok(Self { bits, log2: log2.min(63), sectors: geometry.provided(), offset: geometry.journal_offset() })
    }

    /// The bitmap on disk.
    ///
    /// # Errors
    /// As [`Bitmap::new`], and `Io`.
    pub fn read(disk: &dyn Disk, geometry: &VolumeGeometry, log2_blocks: u8) -> Result<Self> {
        let mut bitmap = Self::new(geometry, log2_blocks)?;
        let room = usize::try_from(geometry.journal_bytes()).unwrap_or(usize::MAX).min(bitmap.bits.len());
        disk::read(disk, bitmap.offset, &mut bitmap.bits[..room])?;
        Ok(bitmap)
    }

    /// Sectors of a bit.
    fn sectors_per_bit(&self) -> u64 {
        1 << self.log2
    }

    /// The regions of these sectors: their bits.
    pub fn bits_of(&self, sectors: Range<u64>) -> Range<u64> {
        let end = sectors.end.min(self.sectors);
        sectors.start >> self.log2..end.div_ceil(self.sectors_per_bit())
    }

    /// All bits.
    pub(crate) fn all(&self) -> Range<u64> {
        self.bits_of(0..self.sectors)
    }

    /// The units in which these bits are, and where they lie.
    pub(crate) fn unit(&self, bits: Range<u64>) -> (u64, &[u8]) {
        let unit =
            |bit: u64| usize::try_from(bit / 8).unwrap_or(usize::MAX).min(self.bits.len()) / UNIT * UNIT;
        let (start, end) = (unit(bits.start), unit(bits.end.saturating_sub(1)) + UNIT);
        let end = end.min(self.bits.len());
        (self.offset + start as u64, &self.bits[start..end.max(start)])
    }

    /// The sectors of these bits.
    pub fn sectors_of(&self, bits: Range<u64>) -> Range<u64> {
        let sector = |bit: u64| bit.saturating_mul(self.sectors_per_bit()).min(self.sectors);
        sector(bits.start)..sector(bits.end)
    }

    /// True if the bit is set.
    pub fn is_set(&self, bit: u64) -> bool {
        let byte = usize::try_from(bit / 8).ok().and_then(|at| self.bits.get(at));
        byte.is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }

    /// Sets or clears bits.
    pub fn set(&mut self, bits: Range<u64>, to: bool) {
        for bit in bits {
            let byte = usize::try_from(bit / 8).ok().and_then(|at| self.bits.get_mut(at));
            if let Some(byte) = byte {
                let mask = 1 << (bit % 8);
                *byte = if to { *byte | mask } else { *byte & !mask };
            }
        }
    }

    /// The runs of sectors whose bits are set.
    pub fn dirty(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let bits = self.bits_of(0..self.sectors).end;
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = (at..bits).find(|bit| self.is_set(*bit))?;
            at = (start..bits).find(|bit| !self.is_set(*bit)).unwrap_or(bits);
            Some(self.sectors_of(start..at))
        })
    }

    /// Writes all of it; the caller syncs.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_all(&self, disk: &dyn Disk) -> Result<()> {
        disk::write(disk, self.offset, &self.bits)
    }
}
