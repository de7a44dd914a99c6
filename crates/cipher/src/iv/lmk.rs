//! `lmk`: loop-AES with several keys, versions 2 and 3.
//!
//! IV = raw MD5 state (no padding) over [64 bytes of seed in version 3], the sector's bytes 16 to 511, and
//! le32{S low, (S >> 32 & 0xFFFFFF) with bit 31 set, 4024, 0}. It depends on the plaintext: reading decrypts with a zero
//! IV and then adds the IV to the first block. Source: loop-AES, `loop.c`, as dm-crypt reads it.

use cipher::inout::InOutBuf;
use md5::block_api::compress;
use zeroize::Zeroize;

use super::{Treatment, sectors};
use crate::mode::Mode;
use crate::sector::Run;
use crate::{Locked, Result};

pub(crate) struct Lmk {
    /// MD5 after the seed's block, or before any.
    state: Locked<[u32; 4]>,
}

/// MD5's initial state (RFC 1321, 3.3).
const MD5: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Lmk {
    /// Version 3 has a seed: the first 16 bytes of the key behind the others, then zeros.
    pub(crate) fn new(seed: Option<&[u8]>) -> Result<Self> {
        let mut state = Locked::new(MD5)?;
        if let Some(seed) = seed {
            let mut block = [0; 64];
            let len = seed.len().min(16);
            block[..len].copy_from_slice(&seed[..len]);
            compress(&mut state, &[block]);
            block.zeroize();
        }
        Ok(Self { state })
    }

    fn iv<const W: usize>(&self, number: u64, sector: &[u8]) -> [u8; W] {
        let mut blocks = [[0; 64]; 8];
        let bytes = blocks.as_flattened_mut();
        bytes[..496].copy_from_slice(&sector[16..512]);
        let number = number.to_le_bytes();
        bytes[496..500].copy_from_slice(&number[..4]);
        bytes[500..503].copy_from_slice(&number[4..7]);
        bytes[503] = 0x80;
        bytes[504..508].copy_from_slice(&4024u32.to_le_bytes());
        let mut state = *self.state;
        compress(&mut state, &blocks);
        let mut digest = [0; 16];
        for (to, word) in digest.chunks_exact_mut(4).zip(state) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut iv = [0; W];
        let len = W.min(16);
        iv[..len].copy_from_slice(&digest[..len]);
        iv
    }
}

impl<const W: usize> Treatment<W> for Lmk {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        for (nth, (iv, sector)) in ivs.iter_mut().zip(data.get_in().chunks_exact(bytes)).enumerate() {
            *iv = self.iv(run.number(nth), sector);
        }
        mode.encrypt(ivs, data);
    }

    fn decrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, mut data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        ivs.fill([0; W]);
        mode.decrypt(ivs, data.reborrow());
        for (nth, sector) in sectors(data.get_out(), bytes).enumerate() {
            let iv: [u8; W] = self.iv(run.number(nth), sector);
            for (byte, iv) in sector.iter_mut().zip(iv) {
                *byte ^= iv;
            }
        }
    }
}
