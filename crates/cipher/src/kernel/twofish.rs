//! Twofish over tables that are made once for each key (Schneier and others, "Twofish: A 128-Bit Block Cipher", 1998).
//!
//! The four S-boxes depend on the key and are followed by a matrix: each of the four tables has both for one byte of a word,
//! so that g is four look-ups. A block is a chain of 16 rounds, each of which waits for its look-ups; blocks side by side fill
//! that time.
//!
//! The places that are looked up depend on key and data, as in the kernel's own code: the caches may tell of them.

mod schedule;

use crate::{Locked, Result};

/// Blocks side by side.
const ABREAST: usize = 4;

/// g for each byte of a word.
type Tables = [[u32; 256]; 4];
/// Eight words of whitening, then two for each round.
type Subkeys = [u32; 40];

/// An expanded Twofish key on locked pages.
pub(crate) struct TwofishKey {
    tables: Locked<Tables>,
    subkeys: Locked<Subkeys>,
}

impl TwofishKey {
    /// Expands a key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// `Memory` when no page could be had.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        let mut new = Self { tables: Locked::new([[0; 256]; 4])?, subkeys: Locked::new([0; 40])? };
        schedule::expand(key, &mut new.tables, &mut new.subkeys);
        Ok(new)
    }

    /// Encrypts blocks on their own, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let (groups, rest) = blocks.as_chunks_mut::<ABREAST>();
        groups.iter_mut().for_each(|group| self.encrypt(group));
        rest.iter_mut().for_each(|block| self.encrypt(std::array::from_mut(block)));
    }

    /// Decrypts blocks on their own, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let (groups, rest) = blocks.as_chunks_mut::<ABREAST>();
        groups.iter_mut().for_each(|group| self.decrypt(group));
        rest.iter_mut().for_each(|block| self.decrypt(std::array::from_mut(block)));
    }

    #[inline(always)]
    fn encrypt<const N: usize>(&self, blocks: &mut [[u8; 16]; N]) {
        let (before, keys) = self.subkeys.split_at(4);
        let (after, keys) = keys.split_at(4);
        let mut x = load(blocks, before);
        for keys in keys.as_chunks::<4>().0 {
            for x in &mut x {
                let [a, b, c, d] = *x;
                let (f0, f1) = round(&self.tables, a, b, keys[0], keys[1]);
                (x[2], x[3]) = ((c ^ f0).rotate_right(1), d.rotate_left(1) ^ f1);
            }
            for x in &mut x {
                let [a, b, c, d] = *x;
                let (f0, f1) = round(&self.tables, c, d, keys[2], keys[3]);
                (x[0], x[1]) = ((a ^ f0).rotate_right(1), b.rotate_left(1) ^ f1);
            }
        }
        store(blocks, &x, after);
    }

    #[inline(always)]
    fn decrypt<const N: usize>(&self, blocks: &mut [[u8; 16]; N]) {
        let (after, keys) = self.subkeys.split_at(4);
        let (before, keys) = keys.split_at(4);
        let mut x = load(blocks, before);
        for keys in keys.as_chunks::<4>().0.iter().rev() {
            for x in &mut x {
                let [a, b, c, d] = *x;
                let (f0, f1) = round(&self.tables, a, b, keys[2], keys[3]);
                (x[2], x[3]) = (c.rotate_left(1) ^ f0, (d ^ f1).rotate_right(1));
            }
            for x in &mut x {
                let [a, b, c, d] = *x;
                let (f0, f1) = round(&self.tables, c, d, keys[0], keys[1]);
                (x[0], x[1]) = (a.rotate_left(1) ^ f0, (b ^ f1).rotate_right(1));
            }
        }
        store(blocks, &x, after);
    }
}

/// F of a round (4.1).
#[inline(always)]
fn round([t0, t1, t2, t3]: &Tables, a: u32, b: u32, k0: u32, k1: u32) -> (u32, u32) {
    let [a0, a1, a2, a3] = a.to_le_bytes().map(usize::from);
    let [b0, b1, b2, b3] = b.to_le_bytes().map(usize::from);
    let g0 = t0[a0] ^ t1[a1] ^ t2[a2] ^ t3[a3];
    // b is rotated by a byte.
    let g1 = t1[b0] ^ t2[b1] ^ t3[b2] ^ t0[b3];
    let sum = g0.wrapping_add(g1);
    (sum.wrapping_add(k0), sum.wrapping_add(g1).wrapping_add(k1))
}

#[inline(always)]
fn load<const N: usize>(blocks: &[[u8; 16]; N], whitening: &[u32]) -> [[u32; 4]; N] {
    blocks.map(|block| {
        let words = block.as_chunks::<4>().0;
        std::array::from_fn(|nth| u32::from_le_bytes(words[nth]) ^ whitening[nth])
    })
}

/// Undoes the last round's exchange of halves.
#[inline(always)]
fn store<const N: usize>(blocks: &mut [[u8; 16]; N], x: &[[u32; 4]; N], whitening: &[u32]) {
    for (block, x) in blocks.iter_mut().zip(x) {
        for (nth, word) in block.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = (x[(nth + 2) % 4] ^ whitening[nth]).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wipe::left_on_the_stack;

    #[test]
    fn no_subkeys_are_left_on_the_stack() {
        let key = TwofishKey::new(&[0x9c; 32]).unwrap();
        // Inverted, so that the list is not found itself.
        let needles: Vec<[u32; 2]> = key.subkeys.as_chunks().0.iter().map(|pair| pair.map(|k| !k)).collect();
        for apply in [TwofishKey::encrypt_blocks, TwofishKey::decrypt_blocks] {
            apply(&key, &mut [[7; 16]; 15]);
            let stack = left_on_the_stack();
            let words: Vec<u32> = stack.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
            assert!(!words.windows(2).any(|pair| needles.iter().any(|needle| needle == pair)));
        }
    }

    /// The vectors of the paper's appendix: I = 3 to 5 of a chain that takes keys and plaintexts of earlier ciphertexts.
    #[test]
    fn the_chains_of_the_paper_end_as_printed() {
        for (len, last) in [
            (16, "5d9d4eeffa9151575524f115815a12e0"),
            (24, "e75449212beef9f4a390bd860a640941"),
            (32, "37fe26ff1cf66175f5ddf4c33b97a205"),
        ] {
            let (mut key, mut plain) = (vec![0u8; len], [0u8; 16]);
            let mut cipher = [0; 16];
            for _ in 0..49 {
                let mut block = [plain];
                let expanded = TwofishKey::new(&key).unwrap();
                expanded.encrypt_blocks(&mut block);
                cipher = block[0];
                expanded.decrypt_blocks(&mut block);
                assert_eq!(block[0], plain);
                key.copy_within(..len - 16, 16);
                key[..16].copy_from_slice(&plain);
                plain = cipher;
            }
            assert_eq!(hex::encode(cipher), last, "{len} bytes");
        }
    }
}
