//! CAST-256 (RFC 2612), which Linux calls cast6, several blocks abreast.
//!
//! A block is a chain of 48 rounds, each of which waits for four look-ups; blocks side by side fill
//! that time. The looked-up places depend on key and data, as in Linux's code: caches may reveal
//! them.

mod boxes;

use boxes::BOXES;

use crate::wipe::wipe_stack;
use crate::{Locked, Result};

/// Blocks side by side.
const ABREAST: usize = 8;

/// The inputs of four rounds: words to add, xor or subtract from, and rotations.
#[derive(Clone, Copy)]
struct Quad {
    masks: [u32; 4],
    rotations: [u32; 4],
}

/// An expanded key on locked pages.
pub(crate) struct Cast6Key {
    quads: Locked<[Quad; 12]>,
}

impl Cast6Key {
    /// Expands a key of 16, 20, 24, 28 or 32 bytes. Returns `Memory` when the system has no page.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        let mut quads = Locked::new([Quad { masks: [0; 4], rotations: [0; 4] }; 12])?;
        expand(key, &mut quads);
        wipe_stack::<1024>();
        Ok(Self { quads })
    }

    /// Encrypts independent blocks, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let (groups, rest) = blocks.as_chunks_mut::<ABREAST>();
        groups.iter_mut().for_each(|group| run::<ABREAST>(self.quads.iter(), group));
        rest.iter_mut().for_each(|block| run::<1>(self.quads.iter(), std::array::from_mut(block)));
    }

    /// Decrypts independent blocks, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let (groups, rest) = blocks.as_chunks_mut::<ABREAST>();
        groups.iter_mut().for_each(|group| run::<ABREAST>(self.quads.iter().rev(), group));
        rest.iter_mut().for_each(|block| run::<1>(self.quads.iter().rev(), std::array::from_mut(block)));
    }
}

/// Six quads forwards, six backwards (2.3); with the keys in the other order, this is the inverse.
#[inline(always)]
fn run<'a, const N: usize>(mut quads: impl Iterator<Item = &'a Quad>, blocks: &mut [[u8; 16]; N]) {
    let mut x = [[0; N]; 4];
    for (nth, block) in blocks.iter().enumerate() {
        for (word, bytes) in x.iter_mut().zip(block.as_chunks().0) {
            word[nth] = u32::from_be_bytes(*bytes);
        }
    }
    let [mut a, mut b, mut c, mut d] = x;
    for quad in quads.by_ref().take(6) {
        round::<1, N>(&mut c, &d, quad, 0);
        round::<2, N>(&mut b, &c, quad, 1);
        round::<3, N>(&mut a, &b, quad, 2);
        round::<1, N>(&mut d, &a, quad, 3);
    }
    for quad in quads {
        round::<1, N>(&mut d, &a, quad, 3);
        round::<3, N>(&mut a, &b, quad, 2);
        round::<2, N>(&mut b, &c, quad, 1);
        round::<1, N>(&mut c, &d, quad, 0);
    }
    for (nth, block) in blocks.iter_mut().enumerate() {
        for (bytes, word) in block.as_chunks_mut().0.iter_mut().zip([&a, &b, &c, &d]) {
            *bytes = word[nth].to_be_bytes();
        }
    }
}

/// A round of blocks side by side: F of this kind, applied to `from`, changes `to`.
#[inline(always)]
fn round<const KIND: u8, const N: usize>(to: &mut [u32; N], from: &[u32; N], quad: &Quad, nth: usize) {
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= f::<KIND>(*from, quad.masks[nth], quad.rotations[nth]);
    }
}

/// The functions f1, f2 and f3 (2.1).
#[inline(always)]
fn f<const KIND: u8>(x: u32, mask: u32, by: u32) -> u32 {
    let x = match KIND {
        1 => mask.wrapping_add(x),
        2 => mask ^ x,
        _ => mask.wrapping_sub(x),
    };
    let [a, b, c, d] = x.rotate_left(by).to_be_bytes().map(usize::from);
    let (a, b, c, d) = (BOXES[0][a], BOXES[1][b], BOXES[2][c], BOXES[3][d]);
    match KIND {
        1 => (a ^ b).wrapping_sub(c).wrapping_add(d),
        2 => a.wrapping_sub(b).wrapping_add(c) ^ d,
        _ => (a.wrapping_add(b) ^ c).wrapping_sub(d),
    }
}

/// Makes the masks and rotations (2.4).
fn expand(key: &[u8], quads: &mut [Quad; 12]) {
    let mut k = [0; 8];
    for (word, bytes) in k.iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    let (mut mask, mut by) = (0x5a82_7999u32, 19);
    let mut next = || {
        let now = (mask, by);
        (mask, by) = (mask.wrapping_add(0x6ed9_eba1), (by + 17) % 32);
        now
    };
    for quad in quads {
        for _ in 0..2 {
            // Each word changes by the one behind it, the last by the first.
            for (nth, kind) in [6, 5, 4, 3, 2, 1, 0, 7].into_iter().zip([1, 2, 3, 1, 2, 3, 1, 2]) {
                let (mask, by) = next();
                let from = k[(nth + 1) % 8];
                k[nth] ^= match kind {
                    1 => f::<1>(from, mask, by),
                    2 => f::<2>(from, mask, by),
                    _ => f::<3>(from, mask, by),
                };
            }
        }
        quad.masks = [k[7], k[5], k[3], k[1]];
        quad.rotations = [k[0] & 31, k[2] & 31, k[4] & 31, k[6] & 31];
    }
}

#[cfg(test)]
mod tests {
    use cipher::{Array, BlockCipherEncrypt, KeyInit};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_number_of_blocks_is_the_librarys(
            key in any::<[u8; 32]>(), words in 4usize..=8, plain in prop::collection::vec(any::<[u8; 16]>(), 0..50),
        ) {
            let key = &key[..4 * words];
            let library = cast6::Cast6::new_from_slice(key).unwrap();
            let key = Cast6Key::new(key).unwrap();
            let (mut want, mut blocks) = (plain.clone(), plain.clone());
            library.encrypt_blocks(Array::cast_slice_from_core_mut(&mut want));
            key.encrypt_blocks(&mut blocks);
            prop_assert!(blocks == want);
            key.decrypt_blocks(&mut blocks);
            prop_assert!(blocks == plain);
        }
    }
}
