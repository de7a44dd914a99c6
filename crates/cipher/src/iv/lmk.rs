//! `lmk`: loop-AES with several keys, versions 2 and 3.
//!
//! IV = raw MD5 state (no padding) over [64 bytes of seed in version 3], the sector's bytes 16 to
//! 511, and le32{S low, (S >> 32 & 0xFFFFFF) with bit 31 set, 4024, 0}. It depends on the
//! plaintext: reading decrypts with a zero IV and then adds the IV to the first block. Source:
//! loop-AES, `loop.c`, as dm-crypt reads it.
//!
//! MD5 and AES want different units of a processor. So where the kernels can, requests of 64
//! sectors or more have each batch hashed while the next one is decrypted, or while the one before
//! is encrypted.

use cipher::inout::InOutBuf;
use md5::block_api::compress;
use zeroize::Zeroize;

use super::{Treatment, sectors};
use crate::kernel::{AesKey, CbcWithMd5, Md5Batch, Md5Lanes};
use crate::mode::{ChainCipher, RotatingModes};
use crate::sector::Run;
use crate::wipe::wipe_stack;
use crate::{CpuPath, Locked, Result};

pub(crate) struct Lmk {
    /// MD5's state after the seed's block, or before any.
    state: Locked<[u32; 4]>,
    /// Vector code for many sectors at once, where the processor can run it.
    lanes: Option<Md5Lanes>,
}

/// Sectors that are hashed together.
const TOGETHER: usize = 32;

/// Bytes of these sectors.
const BATCH: usize = 512 * TOGETHER;

/// The most stack that the vectors use.
const SPILLED: usize = 10 << 10;

/// MD5's initial state (RFC 1321, 3.3).
const MD5: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Lmk {
    /// Makes a generator. Version 3 has a seed: the first 16 bytes of the key behind the others,
    /// then zeros.
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
        let mut sums = [[0; 16]; TOGETHER];
        let mut rest = run;
        for (ivs, data) in ivs.chunks_mut(TOGETHER).zip(data.chunks(bytes * TOGETHER)) {
            let count = ivs.len();
            let ends = ends(rest);
            match &self.lanes {
                Some(lanes) if count > 1 => {
                    lanes.sectors(&self.state, data, &ends[..count], &mut sums[..count]);
                }
                _ => {
                    for ((sector, end), sum) in data.chunks_exact(bytes).zip(ends).zip(&mut sums) {
                        *sum = self.digest(sector, end);
                    }
                }
            }
            for (iv, sum) in ivs.iter_mut().zip(&sums) {
                *iv = [0; W];
                let len = W.min(16);
                iv[..len].copy_from_slice(&sum[..len]);
            }
            rest = rest.skip(count);
        }
        wipe_stack::<SPILLED>();
    }

    #[inline(never)]
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

/// The sector's number as hashed: 56 bits of it count.
fn end(number: u64) -> [u32; 2] {
    let half = |at: u32| u32::try_from(number >> at & 0xffff_ffff).unwrap_or(0);
    [half(0), half(32) & 0x00ff_ffff | 0x8000_0000]
}

/// The numbers of a batch's sectors as hashed.
fn ends(run: Run) -> [[u32; 2]; TOGETHER] {
    std::array::from_fn(|nth| end(run.number(nth)))
}

/// Adds IVs to the sectors' first blocks.
fn add<const W: usize>(out: &mut [u8], ivs: &[[u8; W]]) {
    let bytes = out.len() / ivs.len();
    for (sector, iv) in sectors(out, bytes).zip(ivs) {
        for (byte, iv) in sector.iter_mut().zip(iv) {
            *byte ^= *iv;
        }
    }
}

/// The vector code that overlaps the hashing and the cipher of a request, and its first sector's
/// key; `None` where the request is too short for it.
fn overlap<'a, const W: usize>(
    modes: &RotatingModes<'a, W>,
    bytes: usize,
) -> Option<(CbcWithMd5, &'a AesKey)> {
    let key = modes.mode(0).aes_cbc().filter(|_| bytes >= 2 * BATCH)?;
    Some((key.beside_md5()?, key))
}

impl<const W: usize> Treatment<W> for Lmk {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn ChainCipher<W>, data: InOutBuf<'_, '_, u8>) {
        self.fill(run, ivs, data.get_in());
        mode.encrypt(ivs, data);
    }

    fn decrypt(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        mode: &dyn ChainCipher<W>,
        mut data: InOutBuf<'_, '_, u8>,
    ) {
        ivs.fill([0; W]);
        mode.decrypt(ivs, data.reborrow());
        let out = data.get_out();
        self.fill(run, ivs, out);
        add(out, ivs);
    }

    fn encrypt_together<'i, 'o>(
        &self,
        modes: &RotatingModes<'_, W>,
        data: InOutBuf<'i, 'o, u8>,
    ) -> InOutBuf<'i, 'o, u8> {
        // With many keys sectors go one after the other, and overlapping would gain little.
        let Some((beside, key)) = overlap(modes, data.len()).filter(|_| modes.modes.len() == 1) else {
            return data;
        };
        let (mut batch, mut rest) = data.split_at(BATCH);
        let (mut ivs, mut run) = ([[0; 16]; TOGETHER], modes.run);
        self.fill(run, &mut ivs, batch.get_in());
        while rest.len() >= BATCH {
            let next;
            (next, rest) = rest.split_at(BATCH);
            run = run.skip(TOGETHER);
            let hashed = Md5Batch { state: &self.state, sectors: next.get_in(), ends: &ends(run) };
            ivs = beside.encrypt(key, &ivs, &hashed, batch);
            batch = next;
        }
        key.cbc_encrypt(&ivs, batch);
        wipe_stack::<{ CbcWithMd5::SPILLED }>();
        rest
    }

    fn decrypt_together<'i, 'o>(
        &self,
        modes: &RotatingModes<'_, W>,
        data: InOutBuf<'i, 'o, u8>,
    ) -> InOutBuf<'i, 'o, u8> {
        let Some((beside, first)) = overlap(modes, data.len()) else { return data };
        let (mut batch, mut rest) = data.split_at(BATCH);
        let (mut ivs, mut run) = ([[0; W]; TOGETHER], modes.run);
        modes.decrypt(&mut ivs, batch.reborrow());
        let mut done = batch.into_out();
        while rest.len() >= BATCH {
            let mut batch;
            (batch, rest) = rest.split_at(BATCH);
            let next = RotatingModes { modes: modes.modes, run: run.skip(TOGETHER) };
            let keys = std::array::from_fn(|nth| next.mode(nth).aes_cbc().unwrap_or(first));
            let hashed = Md5Batch { state: &self.state, sectors: done, ends: &ends(run) };
            let states = beside.decrypt(&keys, &hashed, batch.reborrow());
            add(done, &states);
            (done, run) = (batch.into_out(), next.run);
        }
        self.fill(run, &mut ivs, done);
        add(done, &ivs);
        wipe_stack::<{ CbcWithMd5::SPILLED }>();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::{AesCbc, AnyMode};
    use crate::wipe::left_on_the_stack;
    use crate::{Key, SectorSize};

    /// All sectors repeat one word, which is then in each lane.
    #[test]
    fn no_plaintext_is_left_on_the_stack() {
        let mut word = Key::zeroed(4).unwrap();
        getrandom::fill(word.as_mut_bytes()).unwrap();
        let clear: Vec<u8> = word.as_bytes().iter().copied().cycle().take(4 * BATCH).collect();
        // The needle is inverted, so that it is not found itself.
        let needle: [u8; 4] = std::array::from_fn(|i| !word.as_bytes()[i]);
        let run = Run::new(9, SectorSize::S512, false);
        let check = |what: &str| {
            let stack = left_on_the_stack();
            let found = |window: &[u8]| window.iter().zip(needle.iter().cycle()).all(|(a, b)| *a == !*b);
            assert_eq!(stack.windows(16).step_by(4).position(found), None, "{} bytes, {what}", stack.len());
        };
        for path in CpuPath::ALL {
            let Some(data) = AesKey::new(path, &[5; 32]).unwrap() else { continue };
            let lmk = Lmk::new(None, path).unwrap();
            let modes: [AnyMode<16>; 1] = [Box::new(AesCbc { data })];
            let modes = RotatingModes { modes: &modes, run };
            let mut sectors = clear.clone();
            let together = if path == CpuPath::Avx512 { clear.len() } else { 0 };
            for encrypt in [true, false] {
                let rest = match encrypt {
                    true => lmk.encrypt_together(&modes, (&mut sectors[..]).into()).len(),
                    false => lmk.decrypt_together(&modes, (&mut sectors[..]).into()).len(),
                };
                assert_eq!(clear.len() - rest, together);
                check(&format!("encrypting {encrypt} on {}", path.name()));
            }
            for count in [1, 2, 16, 17, 33] {
                let (some, mut ivs) = (&mut sectors[..512 * count], vec![[0; 16]; count]);
                lmk.encrypt(run, &mut ivs, &modes, (&mut *some).into());
                check(&format!("encrypting {count} on {}", path.name()));
                lmk.decrypt(run, &mut ivs, &modes, some.into());
                check(&format!("decrypting {count} on {}", path.name()));
            }
            assert!(sectors == clear);
        }
    }
}
