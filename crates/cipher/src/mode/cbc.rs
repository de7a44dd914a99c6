//! `cbc`: cipher block chaining inside each sector (NIST SP 800-38A, 6.2).
//!
//! C_0 = E(P_0 ^ IV), C_j = E(P_j ^ C_(j-1)). Encryption is serial inside a sector and parallel across
//! sectors, so sectors are interleaved; decryption is parallel everywhere.

use cipher::inout::InOutBuf;

use super::{GROUP, RUN, xor};
use crate::block::{Block, BlockCipher};
use crate::iv::IvGenerator;
use crate::{SectorCipher, SectorSize};

pub(crate) struct Cbc<C, I> {
    pub(crate) data: C,
    pub(crate) iv: I,
    pub(crate) sector_size: SectorSize,
}

impl<C: BlockCipher, I: IvGenerator> Cbc<C, I> {
    /// Calls `each` with runs of sectors and their IVs.
    fn runs(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        each: impl Fn(&mut [Block], InOutBuf<'_, '_, Block>),
    ) {
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
            each(ivs, run);
            sector = sector.wrapping_add(self.sector_size.units().wrapping_mul(sectors as u64));
        }
    }
}

impl<C: BlockCipher, I: IvGenerator> SectorCipher for Cbc<C, I> {
    fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.runs(first, data, |chain, mut run| {
            let per_sector = run.len() / chain.len();
            for block in 0..per_sector {
                for (sector, previous) in chain.iter_mut().enumerate() {
                    *previous = xor(previous, run.get(sector * per_sector + block).get_in());
                }
                self.data.encrypt_blocks(chain);
                for (sector, done) in chain.iter().enumerate() {
                    *run.get(sector * per_sector + block).get_out() = *done;
                }
            }
        });
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.runs(first, data, |ivs, mut run| {
            let per_sector = run.len() / ivs.len();
            let mut ciphertext = [Block::default(); GROUP];
            for previous in ivs {
                let mut sector;
                (sector, run) = run.split_at(per_sector);
                let mut previous = *previous;
                while !sector.is_empty() {
                    let group;
                    (group, sector) = {
                        let n = GROUP.min(sector.len());
                        sector.split_at(n)
                    };
                    let kept = &mut ciphertext[..group.len()];
                    kept.copy_from_slice(group.get_in());
                    let out = group.into_out_with_copied_in();
                    self.data.decrypt_blocks(out);
                    for (block, cipher) in out.iter_mut().zip(kept) {
                        *block = xor(block, &previous);
                        previous = *cipher;
                    }
                }
            }
        });
    }
}
