//! The cipher, written once over words of many blocks.

use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::boxes::{self, Bits};
use super::{Keys, RoundKeys};

/// Words of several blocks side by side: the same word of each.
///
/// # Safety
/// Every method may be called only on a processor with the implementing type's features; so may the
/// operators, whose values come from these methods only. Pointers are read or written for all
/// blocks, at any alignment.
pub(super) trait SerpentWords: Bits {
    const LANES: usize;
    /// Four vectors in turn, not two.
    const FOUR_IN_TURN: bool = true;

    /// A word of the key for every block.
    unsafe fn every(word: u32) -> Self;
    /// To the left by `LEFT`, which is 32 - `RIGHT`.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    unsafe fn shift<const LEFT: i32>(self) -> Self;
    unsafe fn load(from: *const u8) -> [Self; 4];
    unsafe fn store(words: [Self; 4], to: *mut u8);

    /// The xor of three.
    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        self ^ b ^ c
    }

    /// S-box `N`, and a key added.
    #[inline(always)]
    unsafe fn substitute<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: passed on.
        unsafe { add(boxes::substitute::<Self, N>(x), key) }
    }

    /// The inverse of S-box `N`, and a key added.
    #[inline(always)]
    unsafe fn restore<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: passed on.
        unsafe { add(boxes::restore::<Self, N>(x), key) }
    }
}

/// A block alone.
impl SerpentWords for u32 {
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

/// Two vectors in turn: the instructions of one fill the waits of the other.
#[derive(Clone, Copy)]
struct VectorPair<W>(W, W);

impl<W: Bits> Bits for VectorPair<W> {}

impl<W: Bits> BitXor for VectorPair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }
}

impl<W: Bits> BitAnd for VectorPair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0, self.1 & other.1)
    }
}

impl<W: Bits> BitOr for VectorPair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0, self.1 | other.1)
    }
}

impl<W: Bits> Not for VectorPair<W> {
    type Output = Self;

    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0, !self.1)
    }
}

impl<W: SerpentWords> SerpentWords for VectorPair<W> {
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
        unsafe { joined(W::load(from), W::load(from.add(16 * W::LANES))) }
    }

    #[inline(always)]
    unsafe fn store([a, b, c, d]: [Self; 4], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            W::store([a.0, b.0, c.0, d.0], to);
            W::store([a.1, b.1, c.1, d.1], to.add(16 * W::LANES));
        }
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(self.0.xor3(b.0, c.0), self.1.xor3(b.1, c.1)) }
    }

    #[inline(always)]
    unsafe fn substitute<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise.
        unsafe { joined(W::substitute::<N>(x.map(|x| x.0), key), W::substitute::<N>(x.map(|x| x.1), key)) }
    }

    #[inline(always)]
    unsafe fn restore<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: the caller's promise.
        unsafe { joined(W::restore::<N>(x.map(|x| x.0), key), W::restore::<N>(x.map(|x| x.1), key)) }
    }
}

#[inline(always)]
fn joined<W>([a, b, c, d]: [W; 4], [e, f, g, h]: [W; 4]) -> [VectorPair<W>; 4] {
    [VectorPair(a, e), VectorPair(b, f), VectorPair(c, g), VectorPair(d, h)]
}

/// The most lanes.
const MOST: usize = 16;

/// Encrypts or decrypts blocks in place.
///
/// # Safety
/// The processor has the features of `W`.
#[inline(always)]
pub(super) unsafe fn blocks<W: SerpentWords, const ENCRYPT: bool>(keys: &Keys, blocks: &mut [[u8; 16]]) {
    // SAFETY: the features are the caller's promise.
    let rest = unsafe {
        let rest =
            if W::FOUR_IN_TURN { groups::<VectorPair<VectorPair<W>>, ENCRYPT>(keys, blocks) } else { blocks };
        groups::<W, ENCRYPT>(keys, groups::<VectorPair<W>, ENCRYPT>(keys, rest))
    };
    match rest {
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

/// Whole groups of as many blocks as `W` has lanes. Returns the remaining blocks.
///
/// # Safety
/// The processor has the features of `W`.
#[inline(always)]
unsafe fn groups<'a, W: SerpentWords, const ENCRYPT: bool>(
    keys: &Keys,
    blocks: &'a mut [[u8; 16]],
) -> &'a mut [[u8; 16]] {
    let mut groups = blocks.chunks_exact_mut(W::LANES);
    for blocks in &mut groups {
        // SAFETY: that many blocks; the features are the caller's promise.
        unsafe { group::<W, ENCRYPT>(keys, blocks.as_mut_ptr().cast()) }
    }
    groups.into_remainder()
}

/// As many blocks as `W` has lanes.
///
/// # Safety
/// The processor has the features of `W`; `at` is readable and writable for as many blocks.
#[inline(always)]
unsafe fn group<W: SerpentWords, const ENCRYPT: bool>(keys: &Keys, at: *mut u8) {
    // SAFETY: as promised.
    unsafe {
        let x = W::load(at);
        W::store(if ENCRYPT { encrypt(&keys.encrypt, x) } else { decrypt(&keys.decrypt, x) }, at);
    }
}

/// Keys are added after the S-boxes, whose logic may have room for them: keys between rounds are
/// added before the linear transformation.
#[inline(always)]
unsafe fn encrypt<W: SerpentWords>(keys: &RoundKeys, mut x: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        x = add(x, &keys[0]);
        let (eights, _) = keys[1..].as_chunks::<8>();
        for (nth, keys) in eights.iter().enumerate() {
            x = mix(W::substitute::<0>(x, &keys[0]));
            x = mix(W::substitute::<1>(x, &keys[1]));
            x = mix(W::substitute::<2>(x, &keys[2]));
            x = mix(W::substitute::<3>(x, &keys[3]));
            x = mix(W::substitute::<4>(x, &keys[4]));
            x = mix(W::substitute::<5>(x, &keys[5]));
            x = mix(W::substitute::<6>(x, &keys[6]));
            x = W::substitute::<7>(x, &keys[7]);
            if nth < 3 {
                x = mix(x);
            }
        }
        x
    }
}

#[inline(always)]
unsafe fn decrypt<W: SerpentWords>(keys: &RoundKeys, mut x: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let (eights, last) = keys.as_chunks::<8>();
        x = add(x, &last[0]);
        for (nth, keys) in eights.iter().enumerate().rev() {
            x = unmix(W::restore::<7>(x, &keys[7]));
            x = unmix(W::restore::<6>(x, &keys[6]));
            x = unmix(W::restore::<5>(x, &keys[5]));
            x = unmix(W::restore::<4>(x, &keys[4]));
            x = unmix(W::restore::<3>(x, &keys[3]));
            x = unmix(W::restore::<2>(x, &keys[2]));
            x = unmix(W::restore::<1>(x, &keys[1]));
            x = W::restore::<0>(x, &keys[0]);
            if nth > 0 {
                x = unmix(x);
            }
        }
        x
    }
}

/// Turns the proposal's round keys into those that [`encrypt`] adds.
pub(super) fn before_mixing(keys: &RoundKeys, to: &mut RoundKeys) {
    *to = *keys;
    for key in &mut to[1..32] {
        // SAFETY: words need no feature.
        *key = unsafe { unmix(*key) };
    }
}

#[inline(always)]
unsafe fn add<W: SerpentWords>([a, b, c, d]: [W; 4], key: &[u32; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe { [a ^ W::every(key[0]), b ^ W::every(key[1]), c ^ W::every(key[2]), d ^ W::every(key[3])] }
}

/// The linear transformation.
#[inline(always)]
unsafe fn mix<W: SerpentWords>([a, b, c, d]: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let a = a.rotate::<13, 19>();
        let c = c.rotate::<3, 29>();
        let b = b.xor3(a, c).rotate::<1, 31>();
        let d = d.xor3(c, a.shift::<3>()).rotate::<7, 25>();
        let a = a.xor3(b, d).rotate::<5, 27>();
        let c = c.xor3(d, b.shift::<7>()).rotate::<22, 10>();
        [a, b, c, d]
    }
}

/// The inverse of [`mix`].
#[inline(always)]
unsafe fn unmix<W: SerpentWords>([a, b, c, d]: [W; 4]) -> [W; 4] {
    // SAFETY: the caller's promise of features.
    unsafe {
        let c = c.rotate::<10, 22>().xor3(d, b.shift::<7>());
        let a = a.rotate::<27, 5>().xor3(b, d);
        let d = d.rotate::<25, 7>().xor3(c, a.shift::<3>());
        let b = b.rotate::<31, 1>().xor3(a, c);
        [a.rotate::<19, 13>(), b, c.rotate::<29, 3>(), d]
    }
}
