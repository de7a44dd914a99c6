//! Commit ids: the last 8 bytes of every sector of the journal.

use crate::geometry::{JOURNAL_SECTOR, SECTOR_BYTES};
use crate::{Error, ErrorKind, Result};

use super::JournalRound;

/// The base values of the four rounds' ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitIds([u64; 4]);

impl CommitIds {
    /// The base values of a journal without a stream cipher.
    pub(super) const PLAIN: Self =
        Self([0x1111_1111_1111_1111, 0x2222_2222_2222_2222, 0x3333_3333_3333_3333, 0x4444_4444_4444_4444]);

    /// The base values from a stream, which has encrypted the plain ones; equal ones are
    /// incremented until all differ.
    pub(super) fn from_stream(mut ids: [u64; 4]) -> Self {
        for i in 1..ids.len() {
            while ids[..i].contains(&ids[i]) {
                ids[i] = ids[i].wrapping_add(1);
            }
        }
        Self(ids)
    }

    /// The base values as bytes, for the stream.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, id) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    fn id(&self, section: u32, sector: u32, round: usize) -> [u8; 8] {
        (self.0[round] ^ (u64::from(section) << 32) ^ u64::from(sector)).to_le_bytes()
    }

    /// Writes the ids of this round to section `index`.
    pub(super) fn stamp(&self, index: u32, round: JournalRound, section: &mut [u8]) {
        for (sector, bytes) in (0..).zip(section.chunks_exact_mut(SECTOR_BYTES)) {
            bytes[JOURNAL_SECTOR..].copy_from_slice(&self.id(index, sector, usize::from(round.index())));
        }
    }

    /// The rounds of the sectors of section `index`, as a set of bits.
    pub(super) fn rounds(&self, index: u32, section: &[u8]) -> Result<u8> {
        let mut seen = 0;
        for (sector, bytes) in (0..).zip(section.chunks_exact(SECTOR_BYTES)) {
            let round = (0..4).find(|round| bytes[JOURNAL_SECTOR..] == self.id(index, sector, *round));
            let Some(round) = round else {
                let context = format!(
                    "sector {sector} of journal section {index} has no commit id: the journal is damaged, or encrypted with another \
                     key than the one given; without it the volume can be read in recovery mode"
                );
                return Err(Error::new(ErrorKind::BadJournal, context));
            };
            seen |= 1 << round;
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_are_counted_on_until_all_differ() {
        assert_eq!(CommitIds::from_stream([5, 5, 6, 5]), CommitIds([5, 6, 7, 8]));
        assert_eq!(CommitIds::from_stream([u64::MAX, u64::MAX, 0, 9]), CommitIds([u64::MAX, 0, 1, 9]));
    }
}
