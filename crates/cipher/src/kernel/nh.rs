//! NH, the fast half of Adiantum's hash, by vector multiplications: one, two or four units of 16
//! bytes at a time.
//!
//! Words 1 and 2 of every unit are exchanged, in the key beforehand, so that the factors lie side
//! by side.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::CpuPath;
use crate::mode::{NH_PASSES, NH_PIECE, NhKey};

type PieceFn = unsafe fn(&NhKey, &[u8]) -> [u64; NH_PASSES];

/// The vector code of NH.
#[derive(Clone, Copy)]
pub(crate) struct NhLanes {
    // Invariant: a function of features that the processor has.
    piece: PieceFn,
}

impl NhLanes {
    /// The widest vectors of a path that the processor has; `None` without vectors.
    pub(crate) fn of(path: CpuPath) -> Option<Self> {
        match path {
            CpuPath::Portable => None,
            _ if !path.is_available() => None,
            #[cfg(target_arch = "aarch64")]
            _ => Some(Self { piece: neon }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Some(Self { piece: avx512 }),
            #[cfg(target_arch = "x86_64")]
            _ => is_x86_feature_detected!("avx2").then_some(Self { piece: avx2 }),
        }
    }

    /// The sums of at most [`NH_PIECE`] bytes, in whole units of 16.
    ///
    /// # Panics
    /// When the piece is longer, or empty.
    #[inline]
    pub(crate) fn piece(&self, key: &NhKey, piece: &[u8]) -> [u64; NH_PASSES] {
        assert!(piece.len() <= NH_PIECE && piece.len().is_multiple_of(16));
        // SAFETY: the processor has the features; the key is long enough for the longest piece.
        unsafe { (self.piece)(key, piece) }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon(key: &NhKey, piece: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [vdupq_n_u64(0); NH_PASSES];
    let mut keys = key.as_ptr().cast::<u8>();
    // SAFETY: the key is longer than a piece by a unit for each pass but one, and each pass begins
    // a unit later.
    unsafe {
        for unit in piece.as_chunks::<16>().0 {
            let m = vreinterpretq_u32_u8(vld1q_u8(unit.as_ptr()));
            // Words 1 and 2 are exchanged.
            let m = vzip1q_u32(m, vextq_u32::<2>(m, m));
            for (pass, sum) in sums.iter_mut().enumerate() {
                let s = vaddq_u32(m, vreinterpretq_u32_u8(vld1q_u8(keys.add(pass * 16))));
                let s = vreinterpretq_u64_u32(s);
                *sum = vmlal_u32(*sum, vmovn_u64(s), vshrn_n_u64::<32>(s));
            }
            keys = keys.add(16);
        }
    }
    sums.map(|sum| vaddvq_u64(sum))
}

/// Exchanges words 1 and 2 of each unit.
#[cfg(target_arch = "x86_64")]
const SIDE_BY_SIDE: i32 = 0b11_01_10_00;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(key: &NhKey, piece: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [_mm256_setzero_si256(); NH_PASSES];
    let mut keys = key.as_ptr().cast::<u8>();
    let (pairs, rest) = piece.as_chunks::<32>();
    // SAFETY: the key is longer than a piece by a unit for each pass but one, and each pass begins
    // a unit later.
    unsafe {
        for pair in pairs {
            let m = _mm256_shuffle_epi32::<SIDE_BY_SIDE>(_mm256_loadu_si256(pair.as_ptr().cast()));
            for (pass, sum) in sums.iter_mut().enumerate() {
                let s = _mm256_add_epi32(m, _mm256_loadu_si256(keys.add(pass * 16).cast()));
                *sum = _mm256_add_epi64(*sum, _mm256_mul_epu32(s, _mm256_srli_epi64::<32>(s)));
            }
            keys = keys.add(32);
        }
        if let Some(unit) = rest.first_chunk::<16>() {
            let m = _mm_shuffle_epi32::<SIDE_BY_SIDE>(_mm_loadu_si128(unit.as_ptr().cast()));
            for (pass, sum) in sums.iter_mut().enumerate() {
                let s = _mm_add_epi32(m, _mm_loadu_si128(keys.add(pass * 16).cast()));
                let product = _mm_mul_epu32(s, _mm_srli_epi64::<32>(s));
                *sum = _mm256_add_epi64(*sum, _mm256_zextsi128_si256(product));
            }
        }
    }
    folded(sums)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512(key: &NhKey, piece: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [_mm512_setzero_si512(); NH_PASSES];
    let mut keys = key.as_ptr().cast::<u8>();
    let (fours, rest) = piece.as_chunks::<64>();
    // SAFETY: as above; of the remainder only whole units are loaded.
    unsafe {
        for four in fours {
            let m = _mm512_shuffle_epi32::<SIDE_BY_SIDE>(_mm512_loadu_si512(four.as_ptr().cast()));
            for (pass, sum) in sums.iter_mut().enumerate() {
                let s = _mm512_add_epi32(m, _mm512_loadu_si512(keys.add(pass * 16).cast()));
                *sum = _mm512_add_epi64(*sum, _mm512_mul_epu32(s, _mm512_srli_epi64::<32>(s)));
            }
            keys = keys.add(64);
        }
        if !rest.is_empty() {
            // A bit for each present word.
            let there = (1u16 << (rest.len() / 4)) - 1;
            let m = _mm512_maskz_loadu_epi32(there, rest.as_ptr().cast());
            let m = _mm512_shuffle_epi32::<SIDE_BY_SIDE>(m);
            for (pass, sum) in sums.iter_mut().enumerate() {
                let k = _mm512_maskz_loadu_epi32(there, keys.add(pass * 16).cast());
                let s = _mm512_add_epi32(m, k);
                *sum = _mm512_add_epi64(*sum, _mm512_mul_epu32(s, _mm512_srli_epi64::<32>(s)));
            }
        }
    }
    folded(sums.map(|sum| _mm256_add_epi64(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum))))
}

/// The sums of the four lanes of each vector.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn folded([a, b, c, d]: [__m256i; NH_PASSES]) -> [u64; NH_PASSES] {
    let ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    let (low, high) = (_mm256_permute2x128_si256::<0x20>(ab, cd), _mm256_permute2x128_si256::<0x31>(ab, cd));
    let mut sums = [0; NH_PASSES];
    // SAFETY: the array has the vector's length.
    unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_add_epi64(low, high)) }
    sums
}
