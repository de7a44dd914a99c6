//! `lmk`: loop-AES with several keys, versions 2 and 3.
//!
//! IV = raw MD5 state (no padding) over [64 bytes of seed in version 3], the sector's bytes 16 to 511, and
//! le32{S low, (S >> 32 & 0xFFFFFF) with bit 31 set, 4024, 0}. It depends on the plaintext: reading decrypts with a zero
//! IV and then adds the IV to the first block. Source: loop-AES, `loop.c`, as dm-crypt reads it.

use cipher::inout::InOutBuf;
use md5::block_api::compress;
use zeroize::Zeroize;

use super::{Treatment, sectors};
use crate::kernel::Md5Lanes;
use crate::mode::Mode;
use crate::sector::Run;
use crate::wipe::wipe_stack;
use crate::{CpuPath, Locked, Result};

pub(crate) struct Lmk {
    /// MD5 after the seed's block, or before any.
    state: Locked<[u32; 4]>,
    /// Many sectors at once, where the processor can.
    lanes: Option<Md5Lanes>,
}

/// Sectors that are hashed together.
const TOGETHER: usize = 32;

/// The most stack that the vectors use.
const SPILLED: usize = 4 << 10;

/// MD5's initial state (RFC 1321, 3.3).
const MD5: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Lmk {
    /// Version 3 has a seed: the first 16 bytes of the key behind the others, then zeros.
    pub(crate) fn new(seed: Option<&[u8]>, path: CpuPath) -> Result<Self> {
        let mut state = Locked::new(MD5)?;
        if let Some(seed) = seed {
            let mut block = [0; 64];
            let len = seed.len().min(16);
            block[..len].copy_from_slice(&seed[..len]);
            compress(&mut state, &[block]);
            block.zeroize();
        }
        Ok(Self { state, lanes: Md5Lanes::of(path) })
    }

    /// Makes the IVs of sectors of `bytes` bytes: one for each of `ivs`.
    fn fill<const W: usize>(&self, run: Run, ivs: &mut [[u8; W]], data: &[u8]) {
        let bytes = data.len() / ivs.len();
        let (mut ends, mut sums) = ([[0; 2]; TOGETHER], [[0; 16]; TOGETHER]);
        let mut all = [&data[..0]; TOGETHER];
        let mut done = 0;
        for (ivs, data) in ivs.chunks_mut(TOGETHER).zip(data.chunks(bytes * TOGETHER)) {
            let count = ivs.len();
            for (nth, sector) in data.chunks_exact(bytes).enumerate() {
                (all[nth], ends[nth]) = (sector, end(run.number(done + nth)));
            }
            match &self.lanes {
                Some(lanes) if count > 1 => {
                    lanes.sectors(&self.state, &all[..count], &ends[..count], &mut sums[..count]);
                }
                _ => {
                    for nth in 0..count {
                        sums[nth] = self.digest(all[nth], ends[nth]);
                    }
                }
            }
            for (iv, sum) in ivs.iter_mut().zip(&sums) {
                *iv = [0; W];
                let len = W.min(16);
                iv[..len].copy_from_slice(&sum[..len]);
            }
            done += count;
        }
        wipe_stack::<SPILLED>();
    }

    fn digest(&self, sector: &[u8], end: [u32; 2]) -> [u8; 16] {
        let mut blocks = [[0; 64]; 8];
        let bytes = blocks.as_flattened_mut();
        bytes[..496].copy_from_slice(&sector[16..512]);
        for (bytes, word) in bytes[496..].as_chunks_mut::<4>().0.iter_mut().zip([end[0], end[1], 4024, 0]) {
            *bytes = word.to_le_bytes();
        }
        let mut state = *self.state;
        compress(&mut state, &blocks);
        let mut digest = [0; 16];
        for (to, word) in digest.chunks_exact_mut(4).zip(state) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

/// The sector's number, of which 56 bits count, as it is hashed behind it.
fn end(number: u64) -> [u32; 2] {
    let half = |at: u32| u32::try_from(number >> at & 0xffff_ffff).unwrap_or(0);
    [half(0), half(32) & 0x00ff_ffff | 0x8000_0000]
}

impl<const W: usize> Treatment<W> for Lmk {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, data: InOutBuf<'_, '_, u8>) {
        self.fill(run, ivs, data.get_in());
        mode.encrypt(ivs, data);
    }

    fn decrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, mut data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        ivs.fill([0; W]);
        mode.decrypt(ivs, data.reborrow());
        let out = data.get_out();
        self.fill(run, ivs, out);
        for (sector, iv) in sectors(out, bytes).zip(ivs) {
            for (byte, iv) in sector.iter_mut().zip(iv) {
                *byte ^= *iv;
            }
        }
    }
}
