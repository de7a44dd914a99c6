//! The cipher, written once over words of many blocks.

use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::RoundKeys;
use super::boxes::{Bits, restore, substitute};

/// Words of several blocks side by side: the same word of each.
///
/// # Safety
/// Every method may be called only on a processor with the implementing type's features; so may the operators, whose values
/// come from these methods only. Pointers are read or written for all blocks, at any alignment.
pub(super) trait Words: Bits {
    const LANES: usize;

    /// A word of the key for every block.
    unsafe fn every(word: u32) -> Self;
    /// To the left by `LEFT`, which is 32 - `RIGHT`.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    unsafe fn shift<const LEFT: i32>(self) -> Self;
    unsafe fn load(from: *const u8) -> [Self; 4];
    unsafe fn store(words: [Self; 4], to: *mut u8);
}

/// A block alone.
impl Words for u32 {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        word
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        self.rotate_left(LEFT.cast_unsigned())
    }

    #[inline(always)]
    unsafe fn shift<const LEFT: i32>(self) -> Self {
        self << LEFT
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [Self; 4] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[Self; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(words: [Self; 4], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[Self; 4]>().write_unaligned(words) }
    }
}

/// Two vectors in turn: one's instructions fill the other's waits.
#[derive(Clone, Copy)]
struct Pair<W>(W, W);

impl<W: Bits> Bits for Pair<W> {}

impl<W: Bits> BitXor for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }
}

impl<W: Bits> BitAnd for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0, self.1 & other.1)
    }
}

impl<W: Bits> BitOr for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0, self.1 | other.1)
    }
}

impl<W: Bits> Not for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0, !self.1)
    }
}

impl<W: Words> Words for Pair<W> {
    const LANES: usize = 2 * W::LANES;

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(W::every(word), W::every(word)) }
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(self.0.rotate::<LEFT, RIGHT>(), self.1.rotate::<LEFT, RIGHT>()) }
    }

    #[inline(always)]
    unsafe fn shift<const LEFT: i32>(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(self.0.shift::<LEFT>(), self.1.shift::<LEFT>()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [Self; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (W::load(from), W::load(from.add(16 * W::LANES)));
            [Self(a, e), Self(b, f), Self(c, g), Self(d, h)]
        }
    }

    #[inline(always)]
    unsafe fn store([a, b, c, d]: [Self; 4], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            W::store([a.0, b.0, c.0, d.0], to);
            W::store([a.1, b.1, c.1, d.1], to.add(16 * W::LANES));
        }
    }
}

/// The most lanes.
const MOST: usize = 16;

/// Encrypts or decrypts blocks in place.
///
/// # Safety
/// The processor has the features of `W`.
#[inline(always)]
pub(super) unsafe fn blocks<W: Words, const ENCRYPT: bool>(keys: &RoundKeys, blocks: &mut [[u8; 16]]) {
    let mut pairs = blocks.chunks_exact_mut(2 * W::LANES);
    for pair in &mut pairs {
        // SAFETY: that many blocks; the features are the caller's promise.
        unsafe { group::<Pair<W>, ENCRYPT>(keys, pair.as_mut_ptr().cast()) }
    }
    let mut ones = pairs.into_remainder().chunks_exact_mut(W::LANES);
    for one in &mut ones {
        // SAFETY: as above.
        unsafe { group::<W, ENCRYPT>(keys, one.as_mut_ptr().cast()) }
    }
    match ones.into_remainder() {
        [] => {}
        // SAFETY: one block.
        [block] => unsafe { group::<u32, ENCRYPT>(keys, block.as_mut_ptr()) },
        rest => {
            let mut whole = [[0; 16]; MOST];
            whole[..rest.len()].copy_from_slice(rest);
            // SAFETY: no vector has more than MOST lanes.
            unsafe { group::<W, ENCRYPT>(keys, whole.as_mut_ptr().cast()) }
            rest.copy_from_slice(&whole[..rest.len()]);
        }
    }
}

/// As many blocks as `W` has lanes.
///
/// # Safety
/// The processor has the features of `W`; `at` is readable and writable for as many blocks.
#[inline(always)]
unsafe fn group<W: Words, const ENCRYPT: bool>(keys: &RoundKeys, at: *mut u8) {
    // SAFETY: as promised.
    unsafe {
        let x = W::load(at);
        W::store(if ENCRYPT { encrypt(keys, x) } else { decrypt(keys, x) }, at);
    }
}

#[inline(always)]
unsafe fn encrypt<W: Words>(keys: &RoundKeys, mut x: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let (eights, last) = keys.as_chunks::<8>();
        for (nth, keys) in eights.iter().enumerate() {
            if nth > 0 {
                x = mix(x);
            }
            x = substitute::<W, 0>(add(x, &keys[0]));
            x = substitute::<W, 1>(add(mix(x), &keys[1]));
            x = substitute::<W, 2>(add(mix(x), &keys[2]));
            x = substitute::<W, 3>(add(mix(x), &keys[3]));
            x = substitute::<W, 4>(add(mix(x), &keys[4]));
            x = substitute::<W, 5>(add(mix(x), &keys[5]));
            x = substitute::<W, 6>(add(mix(x), &keys[6]));
            x = substitute::<W, 7>(add(mix(x), &keys[7]));
        }
        add(x, &last[0])
    }
}

#[inline(always)]
unsafe fn decrypt<W: Words>(keys: &RoundKeys, mut x: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let (eights, last) = keys.as_chunks::<8>();
        x = add(x, &last[0]);
        for (nth, keys) in eights.iter().enumerate().rev() {
            x = unmix(add(restore::<W, 7>(x), &keys[7]));
            x = unmix(add(restore::<W, 6>(x), &keys[6]));
            x = unmix(add(restore::<W, 5>(x), &keys[5]));
            x = unmix(add(restore::<W, 4>(x), &keys[4]));
            x = unmix(add(restore::<W, 3>(x), &keys[3]));
            x = unmix(add(restore::<W, 2>(x), &keys[2]));
            x = unmix(add(restore::<W, 1>(x), &keys[1]));
            x = add(restore::<W, 0>(x), &keys[0]);
            if nth > 0 {
                x = unmix(x);
            }
        }
        x
    }
}

#[inline(always)]
unsafe fn add<W: Words>([a, b, c, d]: [W; 4], key: &[u32; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe { [a ^ W::every(key[0]), b ^ W::every(key[1]), c ^ W::every(key[2]), d ^ W::every(key[3])] }
}

/// The linear transformation.
#[inline(always)]
unsafe fn mix<W: Words>([a, b, c, d]: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let a = a.rotate::<13, 19>();
        let c = c.rotate::<3, 29>();
        let b = (b ^ a ^ c).rotate::<1, 31>();
        let d = (d ^ c ^ a.shift::<3>()).rotate::<7, 25>();
        let a = (a ^ b ^ d).rotate::<5, 27>();
        let c = (c ^ d ^ b.shift::<7>()).rotate::<22, 10>();
        [a, b, c, d]
    }
}

/// The inverse of [`mix`].
#[inline(always)]
unsafe fn unmix<W: Words>([a, b, c, d]: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let c = c.rotate::<10, 22>() ^ d ^ b.shift::<7>();
        let a = a.rotate::<27, 5>() ^ b ^ d;
        let d = d.rotate::<25, 7>() ^ c ^ a.shift::<3>();
        let b = b.rotate::<31, 1>() ^ a ^ c;
        [a.rotate::<19, 13>(), b, c.rotate::<29, 3>(), d]
    }
}
