//! `eboiv`: the mode's encryption of a zero block with IV = le64(S * sector size): BitLocker's IV
//! for CBC, where that is E(offset).
//!
//! Without `iv_large_sectors` S counts 512-byte units, so the offset is too large by the same
//! factor with larger sectors; this is dm-crypt's behaviour, and stays.

use super::IvGenerator;
use crate::SectorSize;
use crate::mode::AnyMode;
use crate::sector::Run;

pub(crate) struct Eboiv<const W: usize> {
    pub(crate) mode: AnyMode<W>,
    pub(crate) size: SectorSize,
}

/// Offsets in one call of the cipher.
const TOGETHER: usize = 32;

impl<const W: usize> IvGenerator<W> for Eboiv<W> {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        let mut offsets = [[0; W]; TOGETHER];
        for (group, ivs) in ivs.chunks_mut(TOGETHER).enumerate() {
            for (nth, offset) in offsets[..ivs.len()].iter_mut().enumerate() {
                let number = run.number(group * TOGETHER + nth);
                *offset = [0; W];
                offset[..8].copy_from_slice(&number.wrapping_mul(self.size.bytes() as u64).to_le_bytes());
            }
            ivs.fill([0; W]);
            // The mode encrypts as many sectors, of one block each.
            self.mode.encrypt(&mut offsets[..ivs.len()], ivs.as_flattened_mut().into());
        }
    }
}
