//! The bitmap, in the journal's area: the regions whose tags may not match their data after a power
//! cut.

use std::ops::Range;

use crate::disk::{self, Disk};
use crate::{Error, ErrorKind, Result, VolumeGeometry};

/// The kernel's default: log2 of the sectors of a bit.
const DEFAULT_LOG2: u32 = 15;
/// The unit of writes.
const UNIT: usize = 4096;
/// Bytes of a chunk, which callers handle while they hold a lock.
const CHUNK: usize = 16 * UNIT;
/// The largest bitmap: more than any volume needs with a bit for each 32768 sectors. A larger one
/// is refused.
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
    /// log2 of the blocks of a bit: the requested value, but at least a block, and large enough for
    /// all bits to fit into the journal's area.
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

    /// An empty bitmap, with `2^log2_blocks` blocks a bit.
    ///
    /// # Errors
    /// `BadSuperblock` for a granularity whose bits do not fit; `Memory` for a bitmap that is too
    /// large.
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

    /// Reads the bitmap from the disk.
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

    /// The bits of the regions with these sectors.
    pub fn bits_of(&self, sectors: Range<u64>) -> Range<u64> {
        let end = sectors.end.min(self.sectors);
        sectors.start >> self.log2..end.div_ceil(self.sectors_per_bit())
    }

    /// All bits.
    pub(crate) fn all(&self) -> Range<u64> {
        self.bits_of(0..self.sectors)
    }

    /// A copy of the units with these bits, in which the bits are set, and the units' offset.
    pub(crate) fn unit_with(&self, bits: Range<u64>) -> (u64, Vec<u8>) {
        let unit = |bit: u64| self.byte(bit) / UNIT * UNIT;
        let (start, end) = (unit(bits.start), unit(bits.end.saturating_sub(1)) + UNIT);
        let end = end.min(self.bits.len()).max(start);
        let mut units = self.bits[start..end].to_vec();
        let first = start as u64 * 8;
        set(&mut units, bits.start.saturating_sub(first)..bits.end.saturating_sub(first), true);
        (self.offset + start as u64, units)
    }

    /// The bytes of the bitmap in chunks, for callers that lock it for a moment only.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let len = self.bits.len();
        (0..len).step_by(CHUNK).map(move |at| at..len.min(at + CHUNK))
    }

    /// The bytes of a chunk.
    pub(crate) fn chunk(&self, chunk: &Range<usize>) -> &[u8] {
        self.bits.get(chunk.clone()).unwrap_or_default()
    }

    /// The bytes of a chunk, for writing.
    pub(crate) fn chunk_mut(&mut self, chunk: &Range<usize>) -> &mut [u8] {
        self.bits.get_mut(chunk.clone()).unwrap_or_default()
    }

    /// The offset of a chunk on the disk.
    pub(crate) fn chunk_offset(&self, chunk: &Range<usize>) -> u64 {
        self.offset + chunk.start as u64
    }

    /// The byte that a bit is in, at most the end.
    fn byte(&self, bit: u64) -> usize {
        usize::try_from(bit / 8).unwrap_or(usize::MAX).min(self.bits.len())
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
        set(&mut self.bits, bits, to);
    }

    /// The runs of sectors with set bits.
    pub fn dirty(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.dirty_from(0)
    }

    /// The runs of sectors with set bits, from a bit on.
    pub(crate) fn dirty_from(&self, bit: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let bits = self.bits_of(0..self.sectors).end;
        let mut at = bit;
        std::iter::from_fn(move || {
            let start = self.next(at..bits, true)?;
            at = self.next(start..bits, false).unwrap_or(bits);
            Some(self.sectors_of(start..at))
        })
    }

    /// The first of these bits that is set, or that is clear.
    fn next(&self, bits: Range<u64>, set: bool) -> Option<u64> {
        let without = if set { 0 } else { 0xff };
        let mut at = bits.start;
        while at < bits.end {
            if at.is_multiple_of(8) {
                // Uniform bytes are skipped at once.
                let rest = self.bits.get(self.byte(at)..self.byte(bits.end))?;
                let skipped = rest.iter().position(|byte| *byte != without).unwrap_or(rest.len());
                at += skipped as u64 * 8;
            }
            let end = (at / 8 * 8 + 8).min(bits.end);
            if let Some(found) = (at..end).find(|bit| self.is_set(*bit) == set) {
                return Some(found);
            }
            at = end;
        }
        None
    }

    /// Writes all of the bitmap; the caller syncs.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_all(&self, disk: &dyn Disk) -> Result<()> {
        disk::write(disk, self.offset, &self.bits)
    }
}

/// Sets or clears bits of a bitmap; bits beyond its end are ignored.
fn set(bytes: &mut [u8], bits: Range<u64>, to: bool) {
    let count = bytes.len() as u64 * 8;
    let (mut at, end) = (bits.start, bits.end.min(count));
    while at < end {
        let next = (at / 8 * 8 + 8).min(end);
        let Some(first) = usize::try_from(at / 8).ok() else { return };
        if next - at == 8 {
            let last = usize::try_from(end / 8).unwrap_or(usize::MAX).min(bytes.len());
            bytes[first..last].fill(if to { 0xff } else { 0 });
            at = last as u64 * 8;
        } else {
            let mask = (at..next).fold(0, |mask, bit| mask | 1_u8 << (bit % 8));
            let byte = &mut bytes[first];
            *byte = if to { *byte | mask } else { *byte & !mask };
            at = next;
        }
    }
}

#[cfg(test)]
impl Bitmap {
    /// A bitmap of a volume of `sectors` sectors, at the start of its disk.
    pub(crate) fn with_sectors(sectors: u64, log2: u32) -> Self {
        let bytes = sectors.div_ceil(1 << log2).div_ceil(8).next_multiple_of(UNIT as u64);
        Self { bits: vec![0; usize::try_from(bytes).unwrap()], log2, sectors, offset: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits_are_set_and_found_wherever_they_begin() {
        let runs = [(0, 1), (3, 8), (7, 9), (8, 16), (5, 40), (13, 13), (31, 1000), (4090, 4097), (0, 5000)];
        for (from, to) in runs {
            let mut bitmap = Bitmap::with_sectors(5000, 0);
            bitmap.set(from..to, true);
            assert!((0..5000).all(|bit| bitmap.is_set(bit) == (from..to).contains(&bit)), "{from}..{to}");
            let found: Vec<_> = bitmap.dirty().collect();
            assert!(found.iter().eq((from < to).then_some(&(from..to))), "{from}..{to}: {found:?}");
            let middle = from.midpoint(to);
            bitmap.set(middle..middle + 1, false);
            let found = bitmap.dirty().map(|run| run.end - run.start).sum::<u64>();
            assert_eq!(found, (to - from).saturating_sub(1));
            assert_eq!(
                bitmap.dirty_from(middle).next().map(|run| run.start),
                (middle + 1 < to).then_some(middle + 1)
            );
            bitmap.set(from..to, false);
            assert_eq!(bitmap.dirty().next(), None);
        }
    }
}
