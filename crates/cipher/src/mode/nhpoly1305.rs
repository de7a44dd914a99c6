//! Adiantum's hash: H(T, M) = Poly1305_(K_T)(le64(bits of M) || 0^64 || T) +
//! Poly1305_(K_M)(NH_(K_N)(M)) modulo 2^128.
//!
//! NH turns each 1024 bytes of the message (the last piece may be shorter, of whole 16-byte units)
//! into 32 bytes: four passes, each sums (m0 + k0)(m2 + k2) + (m1 + k1)(m3 + k3) over the units,
//! with 32-bit sums and 64-bit products, and keys that begin 16 bytes later from pass to pass.
//! Poly1305 is used without its final addition.

use zeroize::Zeroize;

use super::poly1305::{AccumulatedSum, Poly1305};
use crate::kernel::NhLanes;

/// Bytes of a message that NH hashes together.
pub(crate) const NH_PIECE: usize = 1024;
pub(crate) const NH_PASSES: usize = 4;
/// K_N in 32-bit words.
const NH_WORDS: usize = (NH_PIECE + 16 * (NH_PASSES - 1)) / 4;

/// K_N, words 1 and 2 of each unit exchanged.
pub(crate) type NhKey = [u32; NH_WORDS];

/// Bytes of key: K_T, K_M, K_N.
pub(crate) const HASH_KEY: usize = 16 + 16 + NH_WORDS * 4;

/// The hash's keys.
pub(crate) struct HashKey {
    /// K_T, K_M.
    header: Poly1305,
    message: Poly1305,
    nh: NhKey,
}

impl HashKey {
    /// From [`HASH_KEY`] bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        let (units, _) = key.as_chunks::<16>();
        let mut this =
            Self { header: Poly1305::new(&units[0]), message: Poly1305::new(&units[1]), nh: [0; NH_WORDS] };
        for (words, unit) in this.nh.as_chunks_mut::<4>().0.iter_mut().zip(&units[2..]) {
            let bytes = unit.as_chunks::<4>().0;
            *words = [0, 2, 1, 3].map(|at| u32::from_le_bytes(bytes[at]));
        }
        this
    }

    /// The part of the hash for the tweak and the message's length.
    #[inline]
    pub(crate) fn header(&self, tweak: &[u8; 32], bytes: usize) -> u128 {
        let words = tweak.as_chunks::<8>().0;
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let sum = self.header.add(AccumulatedSum::default(), [bytes as u64 * 8, 0]);
        let sum = self.header.add(sum, [word(0), word(1)]);
        self.header.add(sum, [word(2), word(3)]).finish()
    }

    /// The part of the hash for the message, which has whole 16-byte units.
    #[inline]
    pub(crate) fn message(&self, lanes: Option<&NhLanes>, message: &[u8]) -> u128 {
        let mut sum = AccumulatedSum::default();
        for piece in message.chunks(NH_PIECE) {
            let [a, b, c, d] = match lanes {
                Some(lanes) => lanes.piece(&self.nh, piece),
                None => nh(&self.nh, piece),
            };
            sum = self.message.add(sum, [a, b]);
            sum = self.message.add(sum, [c, d]);
        }
        sum.finish()
    }
}

/// NH of a piece, a unit at a time.
fn nh(key: &NhKey, piece: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [0u64; NH_PASSES];
    for (unit, keys) in piece.as_chunks::<16>().0.iter().zip(key.as_chunks::<4>().0.windows(NH_PASSES)) {
        let m = [0, 8, 4, 12].map(|i| u32::from_le_bytes([unit[i], unit[i + 1], unit[i + 2], unit[i + 3]]));
        for (sum, k) in sums.iter_mut().zip(keys) {
            let half = |i: usize| u64::from(m[i].wrapping_add(k[i]));
            *sum = sum.wrapping_add(half(0) * half(1)).wrapping_add(half(2) * half(3));
        }
    }
    sums
}

impl Drop for HashKey {
    fn drop(&mut self) {
        self.nh.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::CpuPath;

    proptest! {
        #[test]
        fn vectors_sum_what_words_sum(
            key in prop::collection::vec(any::<u32>(), NH_WORDS),
            units in prop::collection::vec(any::<[u8; 16]>(), 0..=NH_PIECE / 16),
        ) {
            let key: NhKey = key.try_into().unwrap();
            let want = nh(&key, units.as_flattened());
            for lanes in CpuPath::ALL.into_iter().filter_map(NhLanes::of) {
                prop_assert_eq!(lanes.piece(&key, units.as_flattened()), want);
            }
        }
    }
}
