//! Ciphers whose S-boxes are the AES's inversion between two affine maps, on the AES instructions:
//! 16, 32 or 64 blocks at once.
//!
//! A register has the bytes at one place of many blocks (or words, for SM4), so that an S-box is
//! one AES instruction for 16 bytes or more, and linear layers are xors of registers. Affine maps
//! are permutes by halves of bytes, or GFNI's instruction for them. There are no look-ups in memory
//! and no branches, so the time is constant; a key's expansion reads whole tables.
//!
//! ```text
//!   Sliced<C>     round keys on locked pages + the functions of the path's widths of register
//!        +-- camellia, aria, sm4   the ciphers, written once over `ByteVector`
//!        +-- kuznyechik            its S-box is a table, in the widest registers
//!        +-- affine                S-boxes as maps around the AES's, made at compile time
//!        +-- vectors               registers of 16, 32 and 64 bytes
//! ```

mod affine;
mod aria;
mod camellia;
mod kuznyechik;
mod sm4;
mod vectors;

pub(crate) use aria::Aria;
pub(crate) use camellia::Camellia;
pub(crate) use kuznyechik::Kuznyechik;
pub(crate) use sm4::Sm4;

use vectors::{ByteVector, SlicedWidth};

use crate::wipe::wipe_stack;
use crate::{CpuPath, Locked, Result};

/// More stack than the expansion of a key uses.
const EXPANDING: usize = 8192;
/// The most stack that a kernel uses, where round keys and blocks may be left; checked builds keep
/// more there, and aarch64's.
const SPILLED: usize = if cfg!(any(debug_assertions, target_arch = "aarch64")) { 4608 } else { 3072 };
/// Blocks of the narrowest registers.
const FEWEST: usize = 16;

/// A cipher's round keys, ready for registers.
pub(crate) trait SlicedCipher: Send + Sync + Sized + 'static {
    /// The value before a key is expanded.
    const EMPTY: Self;

    /// Expands a key of one of the cipher's sizes.
    fn expand(&mut self, key: &[u8]);

    /// Encrypts or decrypts the blocks of 16 registers, in place.
    ///
    /// # Safety
    /// The processor has the features of `V`; 16 of them can be read and written.
    unsafe fn blocks<V: ByteVector, const ENCRYPT: bool>(&self, at: *mut u8);
}

/// An expanded key on locked pages, and the functions that use it.
pub(crate) struct Sliced<C: SlicedCipher> {
    cipher: Locked<C>,
    // Invariant: widths that the processor has; the last one takes 16 blocks.
    widths: &'static [SlicedWidth<C>],
}

impl<C: SlicedCipher> Sliced<C> {
    /// Blocks of the widest registers.
    pub(crate) const WIDEST: usize = 64;

    /// Expands a key of one of the cipher's sizes; `None` for a path without vectors or a processor
    /// that lacks the path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        match SlicedWidth::of(path) {
            [] => Ok(None),
            widths => Self::with(widths, key).map(Some),
        }
    }

    /// Expands a key for groups of [`Sliced::WIDEST`] blocks only; `None` for a path or a processor
    /// without the widest registers. Returns `Memory` when the system has no page.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "there are no widest registers")
    )]
    pub(crate) fn widest(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        match path {
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 if path.is_available() && vectors::has_widest() => {
                Self::with(SlicedWidth::WIDEST_ALONE, key).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn with(widths: &'static [SlicedWidth<C>], key: &[u8]) -> Result<Self> {
        let mut cipher = Locked::new(C::EMPTY)?;
        cipher.expand(key);
        wipe_stack::<EXPANDING>();
        Ok(Self { cipher, widths })
    }

    /// Encrypts blocks on their own, in place.
    pub(crate) fn encrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        self.groups(blocks, |width| width.encrypt);
    }

    /// Decrypts blocks on their own, in place.
    pub(crate) fn decrypt_blocks(&self, blocks: &mut [[u8; 16]]) {
        self.groups(blocks, |width| width.decrypt);
    }

    fn groups(&self, blocks: &mut [[u8; 16]], function: impl Fn(&SlicedWidth<C>) -> vectors::GroupsFn<C>) {
        let mut left = blocks;
        for width in self.widths {
            let (groups, rest) = left.split_at_mut(left.len() / width.blocks * width.blocks);
            // SAFETY: the processor has the width; whole groups.
            unsafe { function(width)(&self.cipher, groups) }
            left = rest;
        }
        if let (Some(width), false) = (self.widths.last(), left.is_empty()) {
            let mut group = [[0; 16]; FEWEST];
            group[..left.len()].copy_from_slice(left);
            // SAFETY: as above; the last width takes groups of this size.
            unsafe { function(width)(&self.cipher, &mut group) }
            left.copy_from_slice(&group[..left.len()]);
        }
        wipe_stack::<SPILLED>();
    }
}

/// A byte of a key in each byte of a word, which registers are filled with.
fn everywhere(byte: u8) -> u32 {
    u32::from_ne_bytes([byte; 4])
}

#[cfg(test)]
mod tests {
    use cipher::{Array, BlockCipherEncrypt, KeyInit, consts::U16};
    use proptest::prelude::*;

    use super::*;
    use crate::wipe::left_on_the_stack;

    #[cfg(target_arch = "aarch64")]
    fn all<C: SlicedCipher>() -> Vec<(&'static str, &'static [SlicedWidth<C>])> {
        [("NEON", SlicedWidth::of(CpuPath::Neon))]
            .into_iter()
            .filter(|(_, widths)| !widths.is_empty())
            .collect()
    }

    /// The widths of this processor; the path in use has only one of them.
    #[cfg(target_arch = "x86_64")]
    fn all<C: SlicedCipher>() -> Vec<(&'static str, &'static [SlicedWidth<C>])> {
        let [avx, avx2] = [is_x86_feature_detected!("avx"), is_x86_feature_detected!("avx2")];
        let (aes, vaes) = (is_x86_feature_detected!("aes"), is_x86_feature_detected!("vaes"));
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let gfni = vaes && avx2 && is_x86_feature_detected!("gfni");
        let widest = gfni && avx512 && vectors::has_widest();
        [
            ("AES-NI and AVX", aes && avx, SlicedWidth::AVX),
            ("AES-NI and AVX2", aes && avx2, SlicedWidth::AVX2),
            ("VAES and AVX2", aes && vaes && avx2, SlicedWidth::VAES_AVX2),
            ("VAES and AVX-512", aes && vaes && avx2 && avx512, SlicedWidth::AVX512),
            ("GFNI and AVX2", aes && gfni, SlicedWidth::GFNI_AVX2),
            ("GFNI and AVX-512", aes && widest, SlicedWidth::GFNI_AVX512),
        ]
        .into_iter()
        .filter_map(|(name, has, widths)| has.then_some((name, widths)))
        .collect()
    }

    fn blocks_are_those_of<C: SlicedCipher, L: KeyInit + BlockCipherEncrypt<BlockSize = U16>>(
        key: &[u8],
        plain: &[[u8; 16]],
    ) -> std::result::Result<(), TestCaseError> {
        let library = L::new_from_slice(key).unwrap();
        let mut want = plain.to_vec();
        library.encrypt_blocks(Array::cast_slice_from_core_mut(&mut want));
        for (name, widths) in all::<C>() {
            let key = Sliced::with(widths, key).unwrap();
            let mut blocks = plain.to_vec();
            key.encrypt_blocks(&mut blocks);
            prop_assert!(blocks == want, "{name}");
            key.decrypt_blocks(&mut blocks);
            prop_assert!(blocks == plain, "{name}, decrypting");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_number_of_blocks_is_the_librarys_on_every_width(
            key in any::<[u8; 32]>(), plain in prop::collection::vec(any::<[u8; 16]>(), 0..200),
        ) {
            blocks_are_those_of::<Camellia, ::camellia::Camellia128>(&key[..16], &plain)?;
            blocks_are_those_of::<Camellia, ::camellia::Camellia192>(&key[..24], &plain)?;
            blocks_are_those_of::<Camellia, ::camellia::Camellia256>(&key, &plain)?;
            blocks_are_those_of::<Aria, ::aria::Aria128>(&key[..16], &plain)?;
            blocks_are_those_of::<Aria, ::aria::Aria192>(&key[..24], &plain)?;
            blocks_are_those_of::<Aria, ::aria::Aria256>(&key, &plain)?;
            blocks_are_those_of::<Sm4, ::sm4::Sm4>(&key[..16], &plain)?;
            blocks_are_those_of::<Kuznyechik, ::kuznyechik::Kuznyechik>(&key, &plain)?;
        }
    }

    fn no_round_keys_are_left<C: SlicedCipher>(cipher: &str, size: usize) {
        for (name, widths) in all::<C>() {
            let bytes: Vec<u8> = (0..32u8).map(|nth| nth.wrapping_mul(37).wrapping_add(11)).collect();
            let key = Sliced::<C>::with(widths, &bytes[..size]).unwrap();
            let keys = (&raw const *key.cipher).cast::<u32>();
            // SAFETY: the ciphers are words and nothing between them.
            let keys = unsafe { std::slice::from_raw_parts(keys, size_of::<C>() / 4) };
            // Inverted, so that the list is not found itself; side by side, and alone everywhere in
            // a register.
            // A cipher's number of rounds is no key: any call may leave such a number.
            let is_count = |pair: &[u32]| pair[0] < 64 && pair[1] == 0;
            let pairs = keys.windows(2).filter(|pair| !is_count(pair));
            let pairs = pairs.map(|pair| [!pair[0], !pair[1]]).filter(|[a, b]| a != b);
            let alone = keys.iter().map(|&word| [!word; 2]);
            // Bytes that registers are full of for other reasons.
            let other = [0, 0xff, 0x0f, 0x01].map(|byte| [!everywhere(byte); 2]);
            let needles: std::collections::BTreeSet<[u32; 2]> =
                pairs.chain(alone).filter(|pair| !other.contains(pair)).collect();
            // Sorting the list left parts of it on the stack, and a byte of a key may be the
            // inverse of another.
            wipe_stack::<{ 64 << 10 }>();
            for apply in [Sliced::encrypt_blocks, Sliced::decrypt_blocks] {
                let mut blocks = [[0; 16]; 127];
                blocks.as_flattened_mut().iter_mut().zip(0u32..).for_each(|(byte, nth)| {
                    *byte = (nth.wrapping_mul(0x9e37_79b1) >> 24).to_le_bytes()[0];
                });
                apply(&key, &mut blocks);
                let stack = left_on_the_stack();
                let words: Vec<u32> =
                    stack.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
                let found = words.windows(2).find(|pair| needles.contains(&[pair[0], pair[1]]));
                assert!(found.is_none(), "{cipher} on {name}: {found:x?}");
            }
        }
    }

    #[test]
    fn no_round_keys_are_left_on_the_stack() {
        no_round_keys_are_left::<Camellia>("camellia", 32);
        no_round_keys_are_left::<Aria>("aria", 32);
        no_round_keys_are_left::<Sm4>("sm4", 16);
        no_round_keys_are_left::<Kuznyechik>("kuznyechik", 32);
    }
}
