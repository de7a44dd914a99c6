//! `pcbc`: propagating cipher block chaining inside each sector.
//!
//! C_j = E(P_j ^ P_(j-1) ^ C_(j-1)), where P_(-1) ^ C_(-1) is the IV. Serial inside a sector both
//! ways, so sectors are interleaved both ways. Source: Kerberos version 4; Menezes, "Handbook of
//! Applied Cryptography", 7.2.2.

use cipher::inout::InOutBuf;

use super::ChainCipher;
use crate::block::{BlockCipher, blocks, xor};

pub(crate) struct Pcbc<C> {
    pub(crate) data: C,
}

impl<C> Pcbc<C> {
    /// Encrypts or decrypts one block of all sectors at a time.
    fn sectors<const B: usize>(&self, chain: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>, encrypt: bool)
    where
        C: BlockCipher<B>,
    {
        let mut data = blocks::<B>(data);
        let per_sector = data.len() / chain.len();
        let mut work = vec![[0; B]; chain.len()];
        for block in 0..per_sector {
            for (sector, work) in work.iter_mut().enumerate() {
                let input = *data.get(sector * per_sector + block).get_in();
                *work = if encrypt { xor(&input, &chain[sector]) } else { input };
            }
            if encrypt {
                self.data.encrypt(&mut work);
            } else {
                self.data.decrypt(&mut work);
            }
            for (sector, work) in work.iter().enumerate() {
                let mut at = data.get(sector * per_sector + block);
                let input = *at.get_in();
                let output = if encrypt { *work } else { xor(work, &chain[sector]) };
                *at.get_out() = output;
                chain[sector] = xor(&input, &output);
            }
        }
    }
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Pcbc<C> {
    fn encrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, true);
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, false);
    }
}
