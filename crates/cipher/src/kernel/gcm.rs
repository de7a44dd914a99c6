//! AES-GCM over whole sectors (NIST SP 800-38D), written once: while eight vectors of counters are
//! encrypted, eight of ciphertext are multiplied by powers of H, and reduced together.
//!
//! GHASH is computed as POLYVAL (RFC 8452, appendix A): bytes of blocks are reversed, and H is
//! multiplied by x once. In that form a product takes two folds to reduce: P = x^63 + x^62 + x^57
//! brings the low 64 bits up.

use super::schedule::RoundKey;
use super::vector::Vector;
use super::{Blocks1, IN_FLIGHT};

/// The most powers: one for each block of eight of the widest vectors. With folding vectors, the
/// sums of their halves follow.
pub(super) const MOST_POWERS: usize = 4 * IN_FLIGHT;

/// The sum of the halves of each block, in its low half.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
unsafe fn folded<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { x.xor(x.swap_halves()) }
}

/// A sector, by address.
pub(super) struct GcmSector {
    /// Powers of H, the highest first, as many as the blocks of eight vectors.
    pub(super) powers: *const u8,
    /// The nonce, and 4 ignored bytes.
    pub(super) nonce: *const u8,
    /// The associated data, in whole blocks, and the number of blocks.
    pub(super) head: *const u8,
    pub(super) head_blocks: usize,
    /// The last block of the hash.
    pub(super) lengths: [u8; 16],
    /// Bytes of the sector, a positive multiple of 512.
    pub(super) bytes: usize,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    /// The address for the GHASH of all blocks.
    pub(super) sum: *mut u8,
}

/// Writes the powers of H = E(0).
///
/// # Safety
/// The processor has the features of `V`; `h` is a block, and `powers` is writable for
/// [`MOST_POWERS`] blocks.
#[inline(always)]
pub(super) unsafe fn powers<V: Vector>(h: *const u8, powers: *mut u8) {
    // SAFETY: as promised.
    unsafe {
        let number = u128::from_be_bytes(h.cast::<[u8; 16]>().read());
        let over = (number >> 127) * 0xc200_0000_0000_0000_0000_0000_0000_0001;
        powers_of::<V>(Blocks1::load(((number << 1) ^ over).to_le_bytes().as_ptr()), powers);
    }
}

/// Writes the powers of POLYVAL's H, and the sums of their halves.
///
/// # Safety
/// As [`powers`].
#[inline(always)]
pub(super) unsafe fn powers_of<V: Vector>(h: Blocks1, powers: *mut u8) {
    // SAFETY: as promised.
    unsafe {
        let count = IN_FLIGHT * V::BLOCKS;
        let mut power = h;
        for nth in (0..count).rev() {
            power.store(powers.add(nth * 16));
            if V::FOLDS {
                folded(power).store(powers.add((count + nth) * 16));
            }
            power = multiply(power, h);
        }
    }
}

/// Encrypts or decrypts a sector, and hashes its ciphertext.
///
/// # Safety
/// The processor has the features of `V`; `keys` are `R + 1` round keys for encryption; the memory
/// of [`GcmSector`] is readable or writable; source and destination are the same or apart.
#[inline(always)]
pub(super) unsafe fn gcm<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: *const RoundKey,
    raw: &GcmSector,
) {
    let group = IN_FLIGHT * V::BYTES;
    let &GcmSector { powers, bytes, src, dst, .. } = raw;
    // SAFETY: 512 is a multiple of a group for every vector; the rest is the caller's promise.
    unsafe {
        let h = Blocks1::load(powers.add((IN_FLIGHT * V::BLOCKS - 1) * 16));
        let mut hash = Blocks1::load([0; 16].as_ptr());
        for nth in 0..raw.head_blocks {
            hash = multiply(hash.xor(Blocks1::load(raw.head.add(nth * 16)).swap_bytes()), h);
        }
        let mut steps = [[0u8; 16]; 4];
        for (step, number) in steps.iter_mut().zip(2u8..) {
            step[0] = number;
        }
        let mut nonce = [0; 16];
        nonce[..12].copy_from_slice(&raw.nonce.cast::<[u8; 12]>().read());
        let mut counter = V::repeat(nonce.as_ptr()).swap_bytes().add_words(V::load(steps.as_ptr().cast()));
        if ENCRYPT {
            let start = V::key(keys);
            step::<V, R, true, false, true>(keys, powers, start, &mut counter, &mut hash, src, src, dst);
            let mut at = group;
            while at < bytes {
                let (from, to, before) = (src.add(at), dst.add(at), dst.add(at - group));
                step::<V, R, true, true, true>(
                    keys,
                    powers,
                    start,
                    &mut counter,
                    &mut hash,
                    before,
                    from,
                    to,
                );
                at += group;
            }
            let last = dst.add(bytes - group);
            step::<V, R, false, true, true>(keys, powers, start, &mut counter, &mut hash, last, last, last);
        } else {
            let mut at = 0;
            while at < bytes {
                let (from, to) = (src.add(at), dst.add(at));
                let start = V::key(keys);
                step::<V, R, true, true, true>(keys, powers, start, &mut counter, &mut hash, from, from, to);
                at += group;
            }
        }
        let lengths = Blocks1::load(raw.lengths.as_ptr()).swap_bytes();
        multiply(hash.xor(lengths), h).swap_bytes().store(raw.sum);
    }
}

/// Encrypts eight vectors of counters with `CIPHER`, and hashes eight vectors of ciphertext from
/// `hashed` with `HASH`. Where both overlap, each vector is hashed before it is written. `start` is
/// added to counters before the first round; with `REVERSED` the bytes of counters and hashed
/// blocks are reversed, as in GCM.
///
/// # Safety
/// As [`gcm`], for one group.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "all are registers, once it is inlined")]
pub(super) unsafe fn step<
    V: Vector,
    const R: usize,
    const CIPHER: bool,
    const HASH: bool,
    const REVERSED: bool,
>(
    keys: *const RoundKey,
    powers: *const u8,
    start: V,
    counter: &mut V,
    hash: &mut Blocks1,
    hashed: *const u8,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = counter.xor(*counter);
        let mut sums = [zero; 3];
        let front = V::in_front(*hash);
        // Few registers hold four vectors and a hash of reversed bytes, and the processor looks
        // ahead from four vectors to the next four. Without the reversal all eight fit.
        if V::SPILLS && REVERSED {
            let half = 4 * V::BYTES;
            part::<V, R, 4, CIPHER, HASH, REVERSED>(
                keys, powers, start, counter, &mut sums, front, hashed, src, dst,
            );
            let (powers, hashed) = (powers.wrapping_add(half), hashed.wrapping_add(half));
            let (src, dst) = (src.wrapping_add(half), dst.wrapping_add(half));
            part::<V, R, 4, CIPHER, HASH, REVERSED>(
                keys, powers, start, counter, &mut sums, zero, hashed, src, dst,
            );
        } else {
            part::<V, R, 8, CIPHER, HASH, REVERSED>(
                keys, powers, start, counter, &mut sums, front, hashed, src, dst,
            );
        }
        if HASH {
            let [low, mixed, high] = sums;
            let mixed = if V::FOLDS { mixed.xor3(low, high) } else { mixed };
            *hash = reduce(low.sum(), mixed.sum(), high.sum());
        }
    }
}

/// `N` vectors of a step, which all are read before one is written. `front` is added to the first
/// hashed one.
///
/// # Safety
/// As [`gcm`], for these vectors.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "all are registers, once it is inlined")]
unsafe fn part<
    V: Vector,
    const R: usize,
    const N: usize,
    const CIPHER: bool,
    const HASH: bool,
    const REVERSED: bool,
>(
    keys: *const RoundKey,
    powers: *const u8,
    start: V,
    counter: &mut V,
    [low, mixed, high]: &mut [V; 3],
    front: V,
    hashed: *const u8,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [start; N];
        if CIPHER {
            let by = V::repeat((V::BLOCKS as u128).to_le_bytes().as_ptr());
            let mut k = 0;
            while k < N {
                x[k] = if REVERSED { counter.swap_bytes() } else { *counter }.xor(start);
                *counter = counter.add_words(by);
                k += 1;
            }
        }
        let mut r = 1;
        while r < R {
            if CIPHER {
                let key = V::key(keys.add(r));
                let mut k = 0;
                while k < N {
                    x[k] = x[k].encrypt_round(key);
                    k += 1;
                }
            }
            if HASH && r <= N {
                // The order is backwards: the first vector waits for the previous hash.
                let at = (N - r) * V::BYTES;
                let mut block = V::load(hashed.add(at));
                if REVERSED {
                    block = block.swap_bytes();
                }
                if r == N {
                    block = block.xor(front);
                }
                let power = V::load(powers.add(at));
                *low = low.xor(block.product_low(power));
                *mixed = mixed.xor(if V::FOLDS {
                    let power = V::load(powers.add(IN_FLIGHT * V::BYTES + at));
                    folded(block).product_low(power)
                } else {
                    block.product_mixed(power)
                });
                *high = high.xor(block.product_high(power));
            }
            r += 1;
        }
        if CIPHER {
            let last = V::key(keys.add(R));
            let mut k = 0;
            while k < N {
                let stream = x[k].encrypt_last(last);
                stream.xor(V::load(src.add(k * V::BYTES))).store(dst.add(k * V::BYTES));
                k += 1;
            }
        }
    }
}

/// The product in POLYVAL's field, divided by x^128.
///
/// # Safety
/// The processor has the features of [`Blocks1`].
#[inline(always)]
pub(super) unsafe fn multiply(a: Blocks1, b: Blocks1) -> Blocks1 {
    // SAFETY: the caller's promise of features.
    unsafe { reduce(a.product_low(b), a.product_mixed(b), a.product_high(b)) }
}

/// low + mixed * x^64 + high * x^128, divided by x^128.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn reduce(low: Blocks1, mixed: Blocks1, high: Blocks1) -> Blocks1 {
    // SAFETY: the caller's promise of features.
    unsafe {
        let p = Blocks1::load(0xc200_0000_0000_0000u128.to_le_bytes().as_ptr());
        let mixed = mixed.xor3(low.swap_halves(), low.product_low(p));
        high.xor3(mixed.swap_halves(), mixed.product_low(p))
    }
}
