//! Adiantum's hash: H(T, M) = Poly1305_(K_T)(le64(bits of M) || 0^64 || T) + Poly1305_(K_M)(NH_(K_N)(M)) modulo 2^128.
//!
//! NH turns each 1024 bytes of the message (the last piece may be shorter, of whole 16-byte units) into 32 bytes: four
//! passes, each sums (m0 + k0)(m2 + k2) + (m1 + k1)(m3 + k3) over the units, with 32-bit sums and 64-bit products, and
//! keys that begin 16 bytes later from pass to pass. Poly1305 is used without its final addition.

use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};
use zeroize::Zeroize;

/// Bytes of a message that NH takes at once.
const PIECE: usize = 1024;
const PASSES: usize = 4;
/// K_N in 32-bit words.
const NH_WORDS: usize = (PIECE + 16 * (PASSES - 1)) / 4;

/// Bytes of key: K_T, K_M, K_N.
pub(crate) const HASH_KEY: usize = 16 + 16 + NH_WORDS * 4;

/// The hash's keys.
pub(crate) struct HashKey {
    /// K_T, K_M: each r, and s of zero.
    header: [u8; 32],
    message: [u8; 32],
    nh: [u32; NH_WORDS],
}

impl HashKey {
    /// From [`HASH_KEY`] bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut this = Self { header: [0; 32], message: [0; 32], nh: [0; NH_WORDS] };
        this.header[..16].copy_from_slice(&key[..16]);
        this.message[..16].copy_from_slice(&key[16..32]);
        for (word, bytes) in this.nh.iter_mut().zip(key[32..].as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        this
    }

    /// H(tweak, message); the message is whole 16-byte units.
    pub(crate) fn sum(&self, tweak: &[u8; 32], message: &[u8]) -> u128 {
        let mut header = [[0; 16]; 3];
        header[0][..8].copy_from_slice(&(message.len() as u64 * 8).to_le_bytes());
        header.as_flattened_mut()[16..].copy_from_slice(tweak);
        let mut hashes = [[0; 16]; 2 * 65536 / PIECE];
        let pieces = message.chunks(PIECE);
        let count = pieces.len();
        for (hash, piece) in hashes.chunks_exact_mut(2).zip(pieces) {
            let sums = self.nh(piece);
            for (bytes, sum) in hash.as_flattened_mut().as_chunks_mut::<8>().0.iter_mut().zip(sums) {
                *bytes = sum.to_le_bytes();
            }
        }
        let sum = poly1305(&self.header, &header).wrapping_add(poly1305(&self.message, &hashes[..2 * count]));
        hashes.zeroize();
        sum
    }

    fn nh(&self, piece: &[u8]) -> [u64; PASSES] {
        let mut sums = [0u64; PASSES];
        for (nth, unit) in piece.as_chunks::<16>().0.iter().enumerate() {
            let word = |i: usize| u32::from_le_bytes([unit[i], unit[i + 1], unit[i + 2], unit[i + 3]]);
            let m = [word(0), word(4), word(8), word(12)];
            let keys = &self.nh[4 * nth..][..4 * PASSES];
            for (sum, k) in sums.iter_mut().zip(keys.as_chunks::<4>().0) {
                let half = |i: usize| u64::from(m[i].wrapping_add(k[i]));
                *sum = sum.wrapping_add(half(0) * half(2)).wrapping_add(half(1) * half(3));
            }
        }
        sums
    }
}

fn poly1305(key: &[u8; 32], blocks: &[[u8; 16]]) -> u128 {
    let mut hash = Poly1305::new(key.into());
    hash.update(poly1305::Block::cast_slice_from_core(blocks));
    u128::from_le_bytes(hash.finalize().into())
}

impl Drop for HashKey {
    fn drop(&mut self) {
        self.header.zeroize();
        self.message.zeroize();
        self.nh.zeroize();
    }
}
