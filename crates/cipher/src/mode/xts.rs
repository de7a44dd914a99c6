//! `xts`: XEX with a tweak for each sector (IEEE 1619-2007, NIST SP 800-38E).
//!
//! T = E_key2(IV); block j: C = E_key1(P ^ T*x^j) ^ T*x^j in GF(2^128). The key is key1 then key2.

use cipher::inout::InOutBuf;

use super::{GROUP, RUN, xor};
use crate::block::{Block, BlockCipher};
use crate::iv::IvGenerator;
use crate::{SectorCipher, SectorSize};

pub(crate) struct Xts<C, I> {
    /// Encrypts the data: key1.
    pub(crate) data: C,
    /// Encrypts the IVs: key2.
    pub(crate) tweak: C,
    pub(crate) iv: I,
    pub(crate) sector_size: SectorSize,
}

/// Tweaks that advance side by side, so that their multiplications overlap in the pipeline.
const LANES: u32 = 8;

/// x * 2^shift in GF(2^128), for a shift of at most 8.
fn shift(x: u128, by: u32) -> u128 {
    let high = x >> (128 - by);
    (x << by) ^ high ^ (high << 1) ^ (high << 2) ^ (high << 7)
}

impl<C: BlockCipher, I: IvGenerator> Xts<C, I> {
    fn run(&self, first: u64, data: InOutBuf<'_, '_, u8>, apply: impl Fn(&C, &mut [Block])) {
        let per_sector = self.sector_size.bytes() / 16;
        let mut rest = super::blocks(data, self.sector_size);
        let mut sector = first;
        let mut ivs = [Block::default(); RUN];
        while !rest.is_empty() {
            let sectors = RUN.min(rest.len() / per_sector);
            let run;
            (run, rest) = rest.split_at(sectors * per_sector);
            let ivs = &mut ivs[..sectors];
            self.iv.fill(sector, self.sector_size.units(), ivs);
            self.tweak.encrypt_blocks(ivs);
            self.sectors(ivs, run, &apply);
            sector = sector.wrapping_add(self.sector_size.units().wrapping_mul(sectors as u64));
        }
    }

    /// Runs groups of blocks through the cipher, whichever sectors they belong to.
    fn sectors(
        &self,
        mut starts: &[Block],
        mut rest: InOutBuf<'_, '_, Block>,
        apply: &impl Fn(&C, &mut [Block]),
    ) {
        let per_sector = rest.len() / starts.len();
        let mut tweaks = [Block::default(); GROUP];
        let mut carry = None;
        let mut left_in_sector = 0;
        while !rest.is_empty() {
            let mut group;
            (group, rest) = {
                let n = GROUP.min(rest.len());
                rest.split_at(n)
            };
            let mut filled = 0;
            while filled < group.len() {
                let start = carry.take().unwrap_or_else(|| {
                    let (first, others) = starts.split_first().unwrap_or((&tweaks[0], &[]));
                    starts = others;
                    left_in_sector = per_sector;
                    u128::from_le_bytes((*first).into())
                });
                let n = left_in_sector.min(group.len() - filled);
                let next = powers(start, &mut tweaks[filled..filled + n]);
                filled += n;
                left_in_sector -= n;
                carry = (left_in_sector > 0).then_some(next);
            }
            let tweaks = &tweaks[..group.len()];
            for (mut block, tweak) in group.reborrow().into_iter().zip(tweaks) {
                let mixed = xor(block.get_in(), tweak);
                *block.get_out() = mixed;
            }
            let out = group.into_out();
            apply(&self.data, out);
            for (block, tweak) in out.iter_mut().zip(tweaks) {
                *block = xor(block, tweak);
            }
        }
    }
}

/// Fills `out` with start * x^j and returns the tweak that follows. `out` is a whole number of lanes.
fn powers(start: u128, out: &mut [Block]) -> u128 {
    let mut lanes = [start; LANES as usize];
    for lane in 1..LANES {
        lanes[lane as usize] = shift(start, lane);
    }
    for chunk in out.chunks_exact_mut(LANES as usize) {
        for (block, lane) in chunk.iter_mut().zip(&mut lanes) {
            *block = Block::from(lane.to_le_bytes());
            *lane = shift(*lane, LANES);
        }
    }
    lanes[0]
}

impl<C: BlockCipher, I: IvGenerator> SectorCipher for Xts<C, I> {
    fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.run(first, data, |cipher, blocks| cipher.encrypt_blocks(blocks));
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.run(first, data, |cipher, blocks| cipher.decrypt_blocks(blocks));
    }
}
