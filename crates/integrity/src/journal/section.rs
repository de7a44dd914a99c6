//! The layout of a decrypted section of the journal.

use std::ops::Range;

use crate::SectionShape;
use crate::geometry::{JOURNAL_SECTOR, MAC_PART, METADATA_SECTORS, SECTOR_BYTES};

/// The high half of the sector in an unused entry.
const UNUSED: u64 = 0xffff_ffff;
/// The first sector that an entry cannot express: larger values have other meanings.
const INEXPRESSIBLE: u64 = 0xffff_fffe_0000_0000;

impl SectionShape {
    /// The first byte of entry `n`.
    fn entry_at(&self, n: usize) -> usize {
        n % METADATA_SECTORS * SECTOR_BYTES + n / METADATA_SECTORS * self.entry_size
    }

    /// The first byte of the data of entry `n`.
    fn data_at(&self, n: usize) -> usize {
        (METADATA_SECTORS + n * self.block_sectors) * SECTOR_BYTES
    }

    /// The bytes of the sector in entry `n`.
    pub(super) fn sector_field(&self, section: &[u8], n: usize) -> [u8; 8] {
        let at = self.entry_at(n);
        std::array::from_fn(|i| section[at + i])
    }

    /// The sector of entry `n`; `None` for an unused one.
    pub fn sector(&self, section: &[u8], n: usize) -> Option<u64> {
        let sector = u64::from_le_bytes(self.sector_field(section, n));
        (sector >> 32 != UNUSED).then_some(sector)
    }

    /// True if no entry is used.
    pub fn is_unused(&self, section: &[u8]) -> bool {
        (0..self.entries()).all(|n| self.sector(section, n).is_none())
    }

    /// The tag of entry `n`.
    pub fn tag<'s>(&self, section: &'s [u8], n: usize, tag_size: usize) -> &'s [u8] {
        let at = self.entry_at(n) + 8 + 8 * self.block_sectors;
        &section[at..at + tag_size]
    }

    /// Copies the block of entry `n` to `block`.
    pub fn block(&self, section: &[u8], n: usize, block: &mut [u8]) {
        let (entry, data) = (self.entry_at(n) + 8, self.data_at(n));
        for (i, sector) in block.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let (from, last) = (data + i * SECTOR_BYTES, entry + i * 8);
            sector[..JOURNAL_SECTOR].copy_from_slice(&section[from..from + JOURNAL_SECTOR]);
            sector[JOURNAL_SECTOR..].copy_from_slice(&section[last..last + 8]);
        }
    }

    /// Restores the ends of the sectors of entry `n`, where commit ids were: the block is
    /// contiguous then, until the section is sealed again.
    pub(crate) fn restore(&self, section: &mut [u8], n: usize) {
        let (entry, data) = (self.entry_at(n) + 8, self.data_at(n));
        for i in 0..self.block_sectors {
            let (last, to) = (entry + i * 8, data + i * SECTOR_BYTES + JOURNAL_SECTOR);
            section.copy_within(last..last + 8, to);
        }
    }

    /// The contiguous blocks of [restored](Self::restore) entries.
    pub(crate) fn restored<'s>(&self, section: &'s [u8], entries: Range<usize>) -> &'s [u8] {
        &section[self.data_at(entries.start)..self.data_at(entries.end)]
    }

    /// Fills entry `n` for `sector`, with its block and tag.
    pub fn fill(&self, section: &mut [u8], n: usize, sector: u64, block: &[u8], tag: &[u8]) {
        debug_assert!(sector < INEXPRESSIBLE);
        let (entry, data) = (self.entry_at(n), self.data_at(n));
        section[entry..entry + 8].copy_from_slice(&sector.to_le_bytes());
        for (i, from) in block.chunks_exact(SECTOR_BYTES).enumerate() {
            let (to, last) = (data + i * SECTOR_BYTES, entry + 8 + i * 8);
            section[to..to + JOURNAL_SECTOR].copy_from_slice(&from[..JOURNAL_SECTOR]);
            section[last..last + 8].copy_from_slice(&from[JOURNAL_SECTOR..]);
        }
        let at = entry + 8 + 8 * self.block_sectors;
        section[at..at + tag.len()].copy_from_slice(tag);
    }

    /// Marks entry `n` as unused; the rest of it stays.
    pub fn set_unused(&self, section: &mut [u8], n: usize) {
        let at = self.entry_at(n);
        section[at + 4..at + 8].fill(0xff);
    }

    /// Marks all entries as unused, and zeros everything else.
    pub fn clear(&self, section: &mut [u8]) {
        section.fill(0);
        (0..self.entries()).for_each(|n| self.set_unused(section, n));
    }

    /// Writes the MAC.
    pub(super) fn set_mac(&self, section: &mut [u8], mac: &[u8; 64]) {
        for (sector, part) in section.chunks_exact_mut(SECTOR_BYTES).zip(mac.chunks_exact(MAC_PART)) {
            sector[JOURNAL_SECTOR - MAC_PART..JOURNAL_SECTOR].copy_from_slice(part);
        }
    }

    /// True if the section has this MAC.
    pub(super) fn has_mac_of(&self, section: &[u8], mac: &[u8; 64]) -> bool {
        let parts = section.chunks_exact(SECTOR_BYTES).zip(mac.chunks_exact(MAC_PART));
        let stored = |sector: &[u8], i: usize| sector[JOURNAL_SECTOR - MAC_PART + i];
        let differ =
            |(sector, part): (&[u8], &[u8])| (0..MAC_PART).fold(0, |d, i| d | (stored(sector, i) ^ part[i]));
        parts.map(differ).fold(0, |all, one| all | one) == 0
    }
}
