//! Twofish over tables that are made once for each key (Schneier and others, "Twofish: A 128-Bit
//! Block Cipher", 1998).
//!
//! The four S-boxes depend on the key and are followed by a matrix: each of the four tables has
//! both for one byte of a word, so that g is four look-ups. A block is a chain of 16 rounds, each
//! of which waits for its look-ups; blocks side by side fill that time.
//!
//! The looked-up places depend on key and data, as in Linux's code: caches may reveal them. Where
//! there are vectors, groups of 32 blocks go through [`permute`] instead, which has no look-ups and
//! is a quarter faster; the rest of a run comes here.

#[cfg_attr(not(target_arch = "x86_64"), path = "twofish/no_permute.rs")]
mod permute;
mod schedule;

use permute::{Boxes, Width};

use crate::{CpuPath, Locked, Result};

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
    boxes: Locked<Boxes>,
    // Invariant: widths that the processor has.
    widths: &'static [Width],
}

impl TwofishKey {
    /// Expands a key of 16, 24 or 32 bytes. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Self> {
        let mut new = Self {
            tables: Locked::new([[0; 256]; 4])?,
            subkeys: Locked::new([0; 40])?,
            boxes: Locked::new([[[0; 16]; 16]; 4])?,
            widths: permute::widths(path),
        };
        schedule::expand(key, &mut new.tables, &mut new.subkeys);
        permute::rows(&new.tables, &mut new.boxes);
        Ok(new)
    }

    /// Encrypts blocks on their own, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let mut left = blocks;
        for width in self.widths {
            let (groups, rest) = left.split_at_mut(left.len() / width.blocks * width.blocks);
            // SAFETY: the processor has the width; whole groups.
            unsafe { (width.encrypt)(&self.boxes, &self.subkeys, groups) }
            left = rest;
        }
        let (groups, rest) = left.as_chunks_mut::<ABREAST>();
        groups.iter_mut().for_each(|group| self.encrypt(group));
        rest.iter_mut().for_each(|block| self.encrypt(std::array::from_mut(block)));
    }

    /// Decrypts blocks on their own, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        let mut left = blocks;
        for width in self.widths {
            let (groups, rest) = left.split_at_mut(left.len() / width.blocks * width.blocks);
            // SAFETY: the processor has the width; whole groups.
            unsafe { (width.decrypt)(&self.boxes, &self.subkeys, groups) }
            left = rest;
        }
        let (groups, rest) = left.as_chunks_mut::<ABREAST>();
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
    use crate::wipe::{left_on_the_stack, wipe_stack};

    fn paths() -> impl Iterator<Item = CpuPath> {
        CpuPath::ALL.into_iter().filter(|path| path.is_available())
    }

    #[test]
    fn nothing_of_the_key_is_left_on_the_stack() {
        for path in paths() {
            let key = TwofishKey::new(path, &[0x9c; 32]).unwrap();
            // Inverted, so that the list is not found itself; pairs of subkeys, subkeys in every
            // lane, rows of S-boxes.
            let pairs = key.subkeys.as_chunks().0.iter().flat_map(|&[a, b]| [[a, b], [a, a], [b, b]]);
            let rows = key.boxes.as_flattened().iter().map(|row| {
                let words = row.as_chunks().0;
                [u32::from_ne_bytes(words[0]), u32::from_ne_bytes(words[1])]
            });
            // Where no path has groups there are no rows.
            let rows = rows.filter(|row| *row != [0; 2]);
            let needles: Vec<[u32; 2]> = pairs.chain(rows).map(|pair| pair.map(|word| !word)).collect();
            // The list was made there.
            wipe_stack::<{ 64 << 10 }>();
            for apply in [TwofishKey::encrypt_blocks, TwofishKey::decrypt_blocks] {
                for blocks in [15, 32, 64] {
                    apply(&key, &mut [[7; 16]; 64][..blocks]);
                    let stack = left_on_the_stack();
                    let words: Vec<u32> =
                        stack.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
                    let found = words.windows(2).any(|pair| needles.iter().any(|needle| needle == pair));
                    assert!(!found, "{blocks} blocks on {}", path.name());
                }
            }
        }
    }

    #[test]
    fn groups_are_what_their_blocks_are() {
        for (path, len) in paths().flat_map(|path| [16, 24, 32].map(|len| (path, len))) {
            let bytes: Vec<u8> = (0..len).map(|n| n * 7 + 5).collect();
            let [one, key] = [CpuPath::Portable, path].map(|path| TwofishKey::new(path, &bytes).unwrap());
            for count in [31, 32, 64, 97, 130] {
                let plain: Vec<[u8; 16]> =
                    (0..count).map(|n| [n; 16].map(|byte: u8| byte.wrapping_mul(59))).collect();
                let (mut want, mut got) = (plain.clone(), plain.clone());
                one.encrypt_blocks(&mut want);
                key.encrypt_blocks(&mut got);
                assert!(want == got, "{count} blocks on {}", path.name());
                key.decrypt_blocks(&mut got);
                assert!(plain == got, "{count} blocks on {}, decrypting", path.name());
            }
        }
    }

    /// The vectors of the paper's appendix: I = 3 to 5 of a chain that takes keys and plaintexts of
    /// earlier ciphertexts.
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
                let expanded = TwofishKey::new(CpuPath::Portable, &key).unwrap();
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
