//! SHA-256 of 88 bytes in a chain, BitLocker's stretching of passwords (FIPS 180-4, 6.2).
//!
//! A link hashes the last digest (32 bytes, zeros at first), the initial digest (32), the salt (16)
//! and the link's number (8, little-endian). These are two blocks, of which the first digest and
//! the number change. With the processor's instructions the digest stays in registers: a detour
//! through memory costs a sixth of the time, and the schedule of the second block is made during
//! the rounds of the first.

use sha2::block_api::compress256;
use zeroize::Zeroize;

use crate::{Key, Locked, Result};

/// SHA-256's initial state (5.3.3).
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
/// Bits of a link's message.
const BITS: u32 = 88 * 8;

/// The last digest of a chain of `count` links.
///
/// # Errors
/// `Memory`.
pub fn sha256_chain(initial: &[u8; 32], salt: [u8; 16], count: u64) -> Result<Key> {
    let mut last = Key::zeroed(32)?;
    let digest: &mut [u8; 32] = last.as_mut_bytes().try_into().expect("a key of 32 bytes");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has the features.
        unsafe { x86::chain(initial, salt, count, digest) };
        crate::wipe::wipe_stack::<4096>();
        return Ok(last);
    }
    portable(initial, salt, count, digest)?;
    Ok(last)
}

/// The message of a link, padded, and the state.
struct Link {
    blocks: [[u8; 64]; 2],
    state: [u32; 8],
}

/// Hashes with the library, on any processor.
fn portable(initial: &[u8; 32], salt: [u8; 16], count: u64, digest: &mut [u8; 32]) -> Result<()> {
    let mut link = Locked::new(Link { blocks: [[0; 64]; 2], state: [0; 8] })?;
    let Link { blocks, state } = &mut *link;
    blocks[0][32..].copy_from_slice(initial);
    blocks[1][..16].copy_from_slice(&salt);
    blocks[1][24] = 0x80;
    blocks[1][60..].copy_from_slice(&BITS.to_be_bytes());
    for number in 0..count {
        blocks[1][16..24].copy_from_slice(&number.to_le_bytes());
        *state = START;
        compress256(state, blocks);
        for (bytes, word) in blocks[0].as_chunks_mut().0.iter_mut().zip(*state) {
            *bytes = word.to_be_bytes();
        }
    }
    digest.copy_from_slice(&link.blocks[0][..32]);
    link.state.zeroize();
    Ok(())
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BITS, START};
    use crate::kernel::sha256::K;

    /// A vector of four words, the first one lowest.
    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn words(words: [u32; 4]) -> __m128i {
        let [a, b, c, d] = words.map(u32::cast_signed);
        _mm_set_epi32(d, c, b, a)
    }

    fn big_endian(bytes: &[u8]) -> [u32; 4] {
        let word = |nth: usize| bytes[4 * nth..4 * nth + 4].try_into().map_or(0, u32::from_be_bytes);
        [word(0), word(1), word(2), word(3)]
    }

    /// Four rounds from round `$at` on, over the words `$this`.
    macro_rules! rounds {
        ($at:literal, $state:ident, $more:ident, $this:expr) => {
            let constants = const { [K[$at], K[$at + 1], K[$at + 2], K[$at + 3]] };
            let sum = _mm_add_epi32($this, words(constants));
            $more = _mm_sha256rnds2_epu32($more, $state, sum);
            $state = _mm_sha256rnds2_epu32($state, $more, _mm_shuffle_epi32::<0x0e>(sum));
        };
    }

    /// The words 16 behind `$this`, in its place, from the 16 words from there on.
    macro_rules! schedule {
        ($this:ident, $next:ident, $third:ident, $last:ident) => {
            let behind = _mm_alignr_epi8::<4>($last, $third);
            let sum = _mm_add_epi32(_mm_sha256msg1_epu32($this, $next), behind);
            $this = _mm_sha256msg2_epu32(sum, $last);
        };
    }

    /// The 64 rounds over a block, whose words are in four vectors. A state is two vectors, FEBA
    /// and HGDC from the lowest word on, as the instructions require. The rounds are written out: a
    /// loop over them is not unrolled, and takes several times as long.
    #[inline]
    #[target_feature(enable = "sha,sse4.1")]
    fn block(start: (__m128i, __m128i), [mut a, mut b, mut c, mut d]: [__m128i; 4]) -> (__m128i, __m128i) {
        let (mut state, mut more) = start;
        rounds!(0, state, more, a);
        schedule!(a, b, c, d);
        rounds!(4, state, more, b);
        schedule!(b, c, d, a);
        rounds!(8, state, more, c);
        schedule!(c, d, a, b);
        rounds!(12, state, more, d);
        schedule!(d, a, b, c);
        rounds!(16, state, more, a);
        schedule!(a, b, c, d);
        rounds!(20, state, more, b);
        schedule!(b, c, d, a);
        rounds!(24, state, more, c);
        schedule!(c, d, a, b);
        rounds!(28, state, more, d);
        schedule!(d, a, b, c);
        rounds!(32, state, more, a);
        schedule!(a, b, c, d);
        rounds!(36, state, more, b);
        schedule!(b, c, d, a);
        rounds!(40, state, more, c);
        schedule!(c, d, a, b);
        rounds!(44, state, more, d);
        schedule!(d, a, b, c);
        rounds!(48, state, more, a);
        rounds!(52, state, more, b);
        rounds!(56, state, more, c);
        rounds!(60, state, more, d);
        (_mm_add_epi32(state, start.0), _mm_add_epi32(more, start.1))
    }

    #[target_feature(enable = "sha,sse4.1")]
    pub(super) fn chain(initial: &[u8; 32], salt: [u8; 16], count: u64, digest: &mut [u8; 32]) {
        let [a, b, c, d, e, f, g, h] = START;
        let start = (words([f, e, b, a]), words([h, g, d, c]));
        let (first, second) = (words(big_endian(&initial[..16])), words(big_endian(&initial[16..])));
        let salt = words(big_endian(&salt));
        let end = words([0, 0, 0, BITS]);
        let mut last = (_mm_setzero_si128(), _mm_setzero_si128());
        for number in 0..count {
            let state = block(start, [last.0, last.1, first, second]);
            // Little-endian bytes are words of the message, which are big-endian.
            let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
            let (low, high) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            let state = block(state, [salt, words([low, high, 0x8000_0000, 0]), _mm_setzero_si128(), end]);
            // FEBA and HGDC become ABCD and EFGH, which are the next message's words.
            let abef = _mm_shuffle_epi32::<0x1b>(state.0);
            let ghcd = _mm_shuffle_epi32::<0xb1>(state.1);
            last = (_mm_blend_epi16::<0xf0>(abef, ghcd), _mm_alignr_epi8::<8>(ghcd, abef));
        }
        let lane = |of: __m128i, nth: usize| {
            let half = if nth < 2 { _mm_cvtsi128_si64(of) } else { _mm_extract_epi64::<1>(of) };
            let [a, b, c, d, e, f, g, h] = half.to_le_bytes();
            u32::from_le_bytes(if nth.is_multiple_of(2) { [a, b, c, d] } else { [e, f, g, h] })
        };
        for (nth, bytes) in digest.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let of = if nth < 4 { last.0 } else { last.1 };
            *bytes = lane(of, nth % 4).to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain is made of SHA-256 of each link's 88 bytes, by the library and by the instructions.
    #[test]
    fn a_chain_is_sha256_of_its_links() {
        use sha2::{Digest, Sha256};
        let initial = std::array::from_fn(|nth| nth.to_le_bytes()[0] ^ 0x5a);
        let salt = std::array::from_fn(|nth| nth.to_le_bytes()[0] * 7);
        let mut expected = [0; 32];
        for number in 0..300u64 {
            let message = [&expected[..], &initial, &salt, &number.to_le_bytes()].concat();
            expected = Sha256::digest(message).into();
            let mut portable_digest = [0; 32];
            portable(&initial, salt, number + 1, &mut portable_digest).unwrap();
            assert_eq!(portable_digest, expected, "{number}");
            assert_eq!(sha256_chain(&initial, salt, number + 1).unwrap().as_bytes(), expected, "{number}");
        }
        assert_eq!(sha256_chain(&initial, salt, 0).unwrap().as_bytes(), [0; 32]);
    }
}
