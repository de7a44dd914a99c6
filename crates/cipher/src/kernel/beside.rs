//! CBC of a batch of sectors, while MD5 hashes another: AES rounds and MD5 use different units of
//! the processor.
//!
//! A block of MD5 in two vectors of lanes is 64 steps for 32 sectors; after each goes a round of
//! AES for eight vectors. So 16 steps are one sector's decryption, or one block's encryption in
//! each of 32 sectors, and eight blocks are the batch.
#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "registers are neither as many nor as long")
)]

use super::IN_FLIGHT;
use super::ecb::{finish, rounds_between};
use super::md5::{self, Batch, InterleavedWork, MOST};
use super::schedule::RoundKey;
use super::vector::Vector;
use super::words::WordVector;

/// Bytes of a sector.
const SECTOR: usize = 512;

/// Decryption with zero IVs: the hashed batch and its states, the round keys for each sector,
/// source, destination.
pub(super) type DecryptFn =
    unsafe fn(&Batch<'_>, &mut [[u8; 16]; MOST], &[*const RoundKey; MOST], *const u8, *mut u8);
/// Encryption: the hashed batch and its states, round keys, the sectors' IVs, source, destination.
pub(super) type EncryptFn =
    unsafe fn(&Batch<'_>, &mut [[u8; 16]; MOST], *const RoundKey, &[[u8; 16]; MOST], *const u8, *mut u8);

/// The functions for one number of rounds.
pub(super) struct Md5CbcFunctions {
    pub(super) decrypt: DecryptFn,
    pub(super) encrypt: EncryptFn,
}

/// The functions for 10, 12 and 14 rounds, for processors with enough registers of enough length.
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512: [Md5CbcFunctions; 3] =
    [avx512::functions::<10>(), avx512::functions::<12>(), avx512::functions::<14>()];

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::Blocks4;
    use super::super::words::Sixteen;
    use super::{Batch, MOST, RoundKey};

    pub(super) const fn functions<const R: usize>() -> super::Md5CbcFunctions {
        super::Md5CbcFunctions { decrypt: decrypt::<R>, encrypt: encrypt::<R> }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,vaes,vpclmulqdq,aes")]
    unsafe fn decrypt<const R: usize>(
        batch: &Batch<'_>,
        states: &mut [[u8; 16]; MOST],
        keys: &[*const RoundKey; MOST],
        src: *const u8,
        dst: *mut u8,
    ) {
        // SAFETY: the caller's promise, passed on.
        unsafe { super::decrypt::<Blocks4, Sixteen, R>(batch, states, keys, src, dst) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,vaes,vpclmulqdq,aes")]
    unsafe fn encrypt<const R: usize>(
        batch: &Batch<'_>,
        states: &mut [[u8; 16]; MOST],
        keys: *const RoundKey,
        ivs: &[[u8; 16]; MOST],
        src: *const u8,
        dst: *mut u8,
    ) {
        // SAFETY: the caller's promise, passed on.
        unsafe { super::encrypt::<Blocks4, Sixteen, R>(batch, states, keys, ivs, src, dst) }
    }
}

/// Hashes a batch, and decrypts [`MOST`] other sectors.
///
/// # Safety
/// The processor has the features of `V` and `W`, of which eight vectors are a sector, and two have
/// a lane for each sector; `keys` are `R + 1` round keys for decryption each; `src` is readable and
/// `dst` writable for all sectors, and they are the same or apart.
#[inline(always)]
unsafe fn decrypt<V: Vector, W: WordVector, const R: usize>(
    batch: &Batch<'_>,
    states: &mut [[u8; 16]; MOST],
    keys: &[*const RoundKey; MOST],
    src: *const u8,
    dst: *mut u8,
) {
    const { assert!(IN_FLIGHT * V::BYTES == SECTOR && 2 * W::LANES == MOST && R < 15) };
    // SAFETY: the caller's promise; 512 steps are 32 sectors.
    unsafe {
        let x = [V::key(keys[0]); IN_FLIGHT];
        let mut beside = Decrypt::<V, R> { keys: keys.as_ptr(), src, dst, x };
        md5::hash::<W, 2, _>(batch, states, &mut beside);
    }
}

/// Sectors to be decrypted.
struct Decrypt<V, const R: usize> {
    /// The round keys of the present sector, and of those behind it.
    keys: *const *const RoundKey,
    src: *const u8,
    dst: *mut u8,
    x: [V; IN_FLIGHT],
}

impl<V: Vector, const R: usize> InterleavedWork for Decrypt<V, R> {
    #[inline(always)]
    unsafe fn step(&mut self, nth: usize) {
        let (turn, x) = (nth % 16, &mut self.x);
        // SAFETY: the caller's promise; in place a sector is written after all of it has been read,
        // and its chain too.
        unsafe {
            let mut k = 0;
            if turn == 0 {
                let first = V::key(*self.keys);
                while k < IN_FLIGHT {
                    x[k] = V::load(self.src.add(k * V::BYTES)).xor(first);
                    k += 1;
                }
            } else if turn < R {
                rounds_between::<V, false, IN_FLIGHT>(*self.keys, turn, turn + 1, x);
            } else if turn == R {
                let last = V::key((*self.keys).add(R));
                x[0] = finish::<V, false>(x[0], last.xor(V::load(self.src).preceded_by(last.xor(last))));
                k = 1;
                while k < IN_FLIGHT {
                    let chain = V::load(self.src.add(k * V::BYTES - 16));
                    x[k] = finish::<V, false>(x[k], last.xor(chain));
                    k += 1;
                }
            } else if turn == R + 1 {
                while k < IN_FLIGHT {
                    x[k].store(self.dst.add(k * V::BYTES));
                    k += 1;
                }
                self.keys = self.keys.add(1);
                self.src = self.src.add(SECTOR);
                self.dst = self.dst.add(SECTOR);
            }
        }
    }
}

/// Hashes a batch, and encrypts [`MOST`] other sectors.
///
/// # Safety
/// As [`decrypt`], with round keys for encryption.
#[inline(always)]
unsafe fn encrypt<V: Vector, W: WordVector, const R: usize>(
    batch: &Batch<'_>,
    states: &mut [[u8; 16]; MOST],
    keys: *const RoundKey,
    ivs: &[[u8; 16]; MOST],
    src: *const u8,
    dst: *mut u8,
) {
    const { assert!(IN_FLIGHT * V::BLOCKS == MOST && 2 * W::LANES == MOST && R < 15) };
    // SAFETY: the caller's promise; 512 steps are 32 blocks of each sector.
    unsafe {
        let mut x = [V::load(ivs.as_ptr().cast()); IN_FLIGHT];
        let mut k = 1;
        while k < IN_FLIGHT {
            x[k] = V::load(ivs.as_ptr().add(k * V::BLOCKS).cast());
            k += 1;
        }
        md5::hash::<W, 2, _>(batch, states, &mut Encrypt::<V, R> { keys, src, dst, x });
    }
}

/// Sectors to be encrypted side by side, at the present block.
struct Encrypt<V, const R: usize> {
    keys: *const RoundKey,
    src: *const u8,
    dst: *mut u8,
    x: [V; IN_FLIGHT],
}

/// The first bytes of the sectors of a vector's blocks.
const OFFSETS: [usize; 4] = [0, SECTOR, 2 * SECTOR, 3 * SECTOR];

impl<V: Vector, const R: usize> InterleavedWork for Encrypt<V, R> {
    #[inline(always)]
    unsafe fn step(&mut self, nth: usize) {
        let (turn, x) = (nth % 16, &mut self.x);
        // SAFETY: the caller's promise.
        unsafe {
            let mut k = 0;
            if turn == 0 {
                let first = V::key(self.keys);
                while k < IN_FLIGHT {
                    let block = V::gather(self.src.add(k * V::BLOCKS * SECTOR), OFFSETS.as_ptr());
                    x[k] = x[k].xor3(block, first);
                    k += 1;
                }
            } else if turn < R {
                rounds_between::<V, true, IN_FLIGHT>(self.keys, turn, turn + 1, x);
            } else if turn == R {
                let last = V::key(self.keys.add(R));
                while k < IN_FLIGHT {
                    x[k] = finish::<V, true>(x[k], last);
                    k += 1;
                }
            } else if turn == R + 1 {
                while k < IN_FLIGHT {
                    x[k].scatter(self.dst.add(k * V::BLOCKS * SECTOR), OFFSETS.as_ptr());
                    k += 1;
                }
                (self.src, self.dst) = (self.src.add(16), self.dst.add(16));
            }
        }
    }
}
