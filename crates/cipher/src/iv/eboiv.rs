//! `eboiv`: the mode's encryption of a zero block with IV = le64(S * sector size): BitLocker's IV for CBC, where that is
//! E(offset).
//!
//! Without `iv_large_sectors` S counts 512-byte units, so that with larger sectors the offset is too large by as much;
//! dm-crypt has it so, and so it stays.

use super::IvGenerator;
use crate::SectorSize;
use crate::mode::AnyMode;
use crate::sector::Run;

pub(crate) struct Eboiv<const W: usize> {
    pub(crate) mode: AnyMode<W>,
    pub(crate) size: SectorSize,
}

impl<const W: usize> IvGenerator<W> for Eboiv<W> {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            let offset = run.number(nth).wrapping_mul(self.size.bytes() as u64);
            let mut from = [0; W];
            from[..8].copy_from_slice(&offset.to_le_bytes());
            *iv = [0; W];
            self.mode.encrypt(&mut [from], (&mut iv[..]).into());
        }
    }
}
