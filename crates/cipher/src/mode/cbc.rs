//! `cbc`: cipher block chaining inside each sector (NIST SP 800-38A, 6.2).
//!
//! C_0 = E(P_0 ^ IV), C_j = E(P_j ^ C_(j-1)). Encryption is serial inside a sector and parallel
//! across sectors, so sectors are interleaved; decryption is parallel everywhere.

use cipher::inout::InOutBuf;

use super::{ChainCipher, GROUP};
use crate::block::{BlockCipher, blocks, xor};
use crate::kernel::{AesKey, SectorBytes};
use crate::{CpuPath, SharedDestination};

/// AES on the vector kernels.
pub(crate) struct AesCbc {
    pub(crate) data: AesKey,
}

impl ChainCipher<16> for AesCbc {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.data.cbc_encrypt(ivs, data);
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.data.cbc_decrypt(ivs, data.into());
    }

    fn decrypt_to(&self, ivs: &mut [[u8; 16]], data: &mut [u8], destination: SharedDestination<'_>) {
        self.data.cbc_decrypt(ivs, SectorBytes::to_shared(data, destination));
    }

    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        Some(self.data.paths())
    }

    fn aes_cbc(&self) -> Option<&AesKey> {
        Some(&self.data)
    }
}

/// Any block cipher of a library.
pub(crate) struct Cbc<C> {
    pub(crate) data: C,
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Cbc<C> {
    fn encrypt(&self, chain: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        let mut data = blocks::<B>(data);
        let per_sector = data.len() / chain.len();
        for block in 0..per_sector {
            for (sector, previous) in chain.iter_mut().enumerate() {
                *previous = xor(previous, data.get(sector * per_sector + block).get_in());
            }
            self.data.encrypt(chain);
            for (sector, done) in chain.iter().enumerate() {
                *data.get(sector * per_sector + block).get_out() = *done;
            }
        }
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        let mut rest = blocks::<B>(data);
        let per_sector = rest.len() / ivs.len();
        let mut ciphertext = [[0; B]; GROUP];
        for iv in ivs {
            let mut sector;
            (sector, rest) = rest.split_at(per_sector);
            let mut previous = *iv;
            while !sector.is_empty() {
                let group;
                (group, sector) = {
                    let n = GROUP.min(sector.len());
                    sector.split_at(n)
                };
                let kept = &mut ciphertext[..group.len()];
                kept.copy_from_slice(group.get_in());
                let out = group.into_out_with_copied_in();
                self.data.decrypt(out);
                for (block, cipher) in out.iter_mut().zip(kept) {
                    *block = xor(block, &previous);
                    previous = *cipher;
                }
            }
        }
    }
}
