//! Serpent, bit-sliced (Anderson, Biham, Knudsen, "Serpent: A Proposal for the Advanced Encryption
//! Standard", 1998).
//!
//! The S-boxes are logic over whole words, so a vector of words is as many blocks at once: 4, 8 or
//! 16, and four vectors in turn (NEON: two). There are no look-ups and no branches, so the time is
//! constant.
//!
//! ```text
//!   SerpentKey    round keys on locked pages + the functions of one width of register
//!        +-- rounds    the cipher, written once over `SerpentWords`
//!        +-- boxes     the S-boxes' logic, two words a step
//!        +-- ternary   the same, three words a step (AVX-512)
//!        +-- vectors   the words of 4 (AVX, NEON), 8 (AVX2) and 16 blocks (AVX-512)
//! ```

mod boxes;
mod rounds;
#[cfg(any(target_arch = "x86_64", test))]
mod ternary;
mod vectors;

use boxes::substitute;

use crate::{CpuPath, Locked, Result};

/// A key for each round, and one more.
type RoundKeys = [[u32; 4]; 33];

/// The round keys of both directions: for decryption the proposal's, for encryption in the order of
/// its additions.
struct Keys {
    encrypt: RoundKeys,
    decrypt: RoundKeys,
}

/// A function for independent blocks, in place.
type BlocksFn = unsafe fn(&Keys, &mut [[u8; 16]]);

/// The functions for one width of register.
struct SerpentFunctions {
    encrypt: BlocksFn,
    decrypt: BlocksFn,
}

/// An expanded Serpent key on locked pages, and the functions that use it.
pub(crate) struct SerpentKey {
    keys: Locked<Keys>,
    // Invariant: functions whose features the processor has.
    functions: &'static SerpentFunctions,
}

impl SerpentKey {
    /// Expands a key of 16 to 32 bytes; `None` for a path without vectors or a processor that lacks
    /// the path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        functions(path).map(|functions| Self::with(functions, key)).transpose()
    }

    fn with(functions: &'static SerpentFunctions, key: &[u8]) -> Result<Self> {
        let mut keys = Locked::new(Keys { encrypt: [[0; 4]; 33], decrypt: [[0; 4]; 33] })?;
        let Keys { encrypt, decrypt } = &mut *keys;
        expand(key, decrypt);
        rounds::before_mixing(decrypt, encrypt);
        Ok(Self { keys, functions })
    }

    /// Encrypts independent blocks, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        // SAFETY: the processor has the features.
        unsafe { (self.functions.encrypt)(&self.keys, blocks) }
    }

    /// Decrypts independent blocks, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        // SAFETY: as above.
        unsafe { (self.functions.decrypt)(&self.keys, blocks) }
    }
}

/// The widest vectors of a path that the processor has.
fn functions(path: CpuPath) -> Option<&'static SerpentFunctions> {
    match path {
        CpuPath::Portable => None,
        _ if !path.is_available() => None,
        #[cfg(target_arch = "aarch64")]
        _ => Some(&vectors::NEON),
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx512 => Some(&vectors::AVX512),
        #[cfg(target_arch = "x86_64")]
        CpuPath::AesNi | CpuPath::Vaes256 if is_x86_feature_detected!("avx2") => Some(&vectors::AVX2),
        // The path includes AVX.
        #[cfg(target_arch = "x86_64")]
        _ => Some(&vectors::AVX),
    }
}

/// Makes the round keys (the proposal's section 4).
fn expand(key: &[u8], keys: &mut RoundKeys) {
    let mut padded = [0; 32];
    padded[..key.len()].copy_from_slice(key);
    if let Some(end) = padded.get_mut(key.len()) {
        *end = 1;
    }
    let mut w = [0; 8];
    for (word, bytes) in w.iter_mut().zip(padded.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    for (word, i) in keys.as_flattened_mut().iter_mut().zip(0u32..) {
        *word = (w[0] ^ w[3] ^ w[5] ^ w[7] ^ 0x9e37_79b9 ^ i).rotate_left(11);
        w.rotate_left(1);
        w[7] = *word;
    }
    // The S-boxes are S3, S2, .. backwards from the first.
    for (nth, key) in keys.iter_mut().enumerate() {
        *key = match nth % 8 {
            0 => substitute::<u32, 3>(*key),
            1 => substitute::<u32, 2>(*key),
            2 => substitute::<u32, 1>(*key),
            3 => substitute::<u32, 0>(*key),
            4 => substitute::<u32, 7>(*key),
            5 => substitute::<u32, 6>(*key),
            6 => substitute::<u32, 5>(*key),
            _ => substitute::<u32, 4>(*key),
        };
    }
}

#[cfg(test)]
mod tests {
    use cipher::{Array, BlockCipherEncrypt, KeyInit};
    use proptest::prelude::*;

    use super::*;
    use crate::wipe::left_on_the_stack;

    /// The widths of this processor; the path in use has only one of them.
    #[cfg(target_arch = "aarch64")]
    fn all() -> Vec<(&'static str, &'static SerpentFunctions)> {
        vec![("NEON", &vectors::NEON)]
    }

    /// The widths of this processor; the path in use has only one of them.
    #[cfg(target_arch = "x86_64")]
    fn all() -> Vec<(&'static str, &'static SerpentFunctions)> {
        [
            ("AVX", is_x86_feature_detected!("avx"), &vectors::AVX),
            ("AVX2", is_x86_feature_detected!("avx2"), &vectors::AVX2),
            ("AVX-512", is_x86_feature_detected!("avx512f"), &vectors::AVX512),
        ]
        .into_iter()
        .filter_map(|(name, has, functions)| has.then_some((name, functions)))
        .collect()
    }

    proptest! {
        #[test]
        fn any_number_of_blocks_is_the_librarys_on_every_width(
            key in prop::sample::select(&[16usize, 24, 32][..]).prop_flat_map(|n| prop::collection::vec(any::<u8>(), n)),
            plain in prop::collection::vec(any::<[u8; 16]>(), 0..150),
        ) {
            let library = serpent::Serpent::new_from_slice(&key).unwrap();
            let mut want = plain.clone();
            library.encrypt_blocks(Array::cast_slice_from_core_mut(&mut want));
            for (name, functions) in all() {
                let key = SerpentKey::with(functions, &key).unwrap();
                let mut blocks = plain.clone();
                key.encrypt_blocks(&mut blocks);
                prop_assert!(blocks == want, "{name}");
                key.decrypt_blocks(&mut blocks);
                prop_assert!(blocks == plain, "{name}, decrypting");
            }
        }
    }

    #[test]
    fn no_round_keys_are_left_on_the_stack() {
        for (name, functions) in all() {
            let key = SerpentKey::with(functions, &[0x9c; 32]).unwrap();
            // The keys are inverted, so that the list is not found itself; alone, and in every
            // lane.
            let of = |pair: [u32; 2]| [pair, [pair[0]; 2], [pair[1]; 2]];
            let both = [key.keys.encrypt, key.keys.decrypt].concat();
            let needles: Vec<[u32; 2]> =
                both.as_flattened().as_chunks().0.iter().flat_map(|pair| of(pair.map(|k| !k))).collect();
            for apply in [SerpentKey::encrypt_blocks, SerpentKey::decrypt_blocks] {
                apply(&key, &mut [[7; 16]; 127]);
                let stack = left_on_the_stack();
                let words: Vec<u32> =
                    stack.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
                assert!(!words.windows(2).any(|pair| needles.iter().any(|n| n == pair)), "{name}");
            }
        }
    }
}
