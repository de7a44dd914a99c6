//! AES key expansion (FIPS-197, 5.2) with the processor's own S-box, so no table is looked up by
//! key bytes.

use super::Blocks1;
#[cfg(target_arch = "x86_64")]
use super::aesni::sub_word;
#[cfg(target_arch = "aarch64")]
use super::neon::sub_word;
use super::vector::Vector;

/// The most round keys: AES-256's.
pub(super) const MAX_ROUND_KEYS: usize = 15;

/// A round key, repeated to the width of the widest vector so that every path loads it whole.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct RoundKey(pub(super) [[u8; 16]; 4]);

/// The round keys of both directions.
#[repr(C)]
pub(super) struct Schedule {
    pub(super) encrypt: [RoundKey; MAX_ROUND_KEYS],
    /// The keys of the equivalent inverse cipher (5.3.5): in reverse order, the inner ones through
    /// InvMixColumns.
    pub(super) decrypt: [RoundKey; MAX_ROUND_KEYS],
}

impl Schedule {
    pub(super) const EMPTY: Self = Self {
        encrypt: [RoundKey([[0; 16]; 4]); MAX_ROUND_KEYS],
        decrypt: [RoundKey([[0; 16]; 4]); MAX_ROUND_KEYS],
    };

    /// Expands a key of 16, 24 or 32 bytes in place: words pass through registers only.
    ///
    /// # Safety
    /// The processor has AES instructions.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "aes,sse4.1"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon,aes"))]
    pub(super) unsafe fn expand(&mut self, key: &[u8]) {
        let words = key.len() / 4;
        let rounds = words + 6;
        let mut rcon = 1u8;
        for i in 0..4 * (rounds + 1) {
            let word = if i < words {
                let at = 4 * i;
                u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]])
            } else {
                let mut previous = self.word(i - 1);
                if i.is_multiple_of(words) {
                    // SAFETY: the caller's promise of features.
                    previous = unsafe { sub_word(previous) }.rotate_right(8) ^ u32::from(rcon);
                    rcon = (rcon << 1) ^ if rcon & 0x80 == 0 { 0 } else { 0x1b };
                } else if words == 8 && i % words == 4 {
                    // SAFETY: as above.
                    previous = unsafe { sub_word(previous) };
                }
                self.word(i - words) ^ previous
            };
            for copy in &mut self.encrypt[i / 4].0 {
                copy[i % 4 * 4..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
        for round in 0..=rounds {
            let inner = round != 0 && round != rounds;
            // SAFETY: the caller's promise of features; blocks are read and written whole.
            unsafe {
                let block = Blocks1::load(self.encrypt[rounds - round].0[0].as_ptr());
                let block = if inner { block.unmix() } else { block };
                for copy in &mut self.decrypt[round].0 {
                    block.store(copy.as_mut_ptr());
                }
            }
        }
    }

    fn word(&self, i: usize) -> u32 {
        let block = &self.encrypt[i / 4].0[0];
        let at = i % 4 * 4;
        u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
    }
}
