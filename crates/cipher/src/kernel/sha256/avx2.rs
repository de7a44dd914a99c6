//! Eight messages: AVX2, for processors that have neither AVX-512 nor instructions for SHA-256.
//!
//! # Safety argument
//! The intrinsics touch no memory but through the pointers they are given, and are sound wherever their instructions exist.
//! [`super::Sha256Lanes`] hands this out only after the processor said that it has them.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::x86_64::*;

use super::{MOST, Pointers, Words, columns_of_four};

#[target_feature(enable = "avx2")]
pub(super) unsafe fn hmac(
    states: &[[u32; 8]; 2],
    heads: &Pointers,
    head: usize,
    sectors: &Pointers,
    bytes: usize,
    sums: &mut [[u8; 32]; MOST],
) {
    super::hmac::<Eight>(states, heads, head, sectors, bytes, sums);
}

#[derive(Clone, Copy)]
struct Eight(__m256i);

macro_rules! rotated {
    ($x:expr, $by:literal, $back:literal) => {
        _mm256_or_si256(_mm256_srli_epi32::<$by>($x), _mm256_slli_epi32::<$back>($x))
    };
}

macro_rules! xor_of {
    ($a:expr, $b:expr, $c:expr) => {
        Self(_mm256_xor_si256(_mm256_xor_si256($a, $b), $c))
    };
}

impl Words for Eight {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        Self(_mm256_set1_epi32(word.cast_signed()))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm256_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sum0(self) -> Self {
        let x = self.0;
        xor_of!(rotated!(x, 2, 30), rotated!(x, 13, 19), rotated!(x, 22, 10))
    }

    #[inline(always)]
    unsafe fn sum1(self) -> Self {
        let x = self.0;
        xor_of!(rotated!(x, 6, 26), rotated!(x, 11, 21), rotated!(x, 25, 7))
    }

    #[inline(always)]
    unsafe fn sigma0(self) -> Self {
        let x = self.0;
        xor_of!(rotated!(x, 7, 25), rotated!(x, 18, 14), _mm256_srli_epi32::<3>(x))
    }

    #[inline(always)]
    unsafe fn sigma1(self) -> Self {
        let x = self.0;
        xor_of!(rotated!(x, 17, 15), rotated!(x, 19, 13), _mm256_srli_epi32::<10>(x))
    }

    #[inline(always)]
    unsafe fn choose(self, f: Self, g: Self) -> Self {
        Self(_mm256_xor_si256(g.0, _mm256_and_si256(self.0, _mm256_xor_si256(f.0, g.0))))
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        let differ = _mm256_xor_si256(self.0, b.0);
        Self(_mm256_xor_si256(b.0, _mm256_and_si256(differ, _mm256_xor_si256(b.0, c.0))))
    }

    #[inline(always)]
    unsafe fn load(blocks: &Pointers) -> [Self; 16] {
        let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        let mut words = [Self(_mm256_setzero_si256()); 16];
        let mut half = 0;
        while half < 16 {
            let mut rows = [_mm256_setzero_si256(); 8];
            let mut i = 0;
            while i < 8 {
                let row = _mm256_loadu_si256(blocks[i].add(half * 4).cast());
                rows[i] = _mm256_shuffle_epi8(row, swap);
                i += 1;
            }
            let fours = columns_of_four!(
                rows,
                _mm256_unpacklo_epi32,
                _mm256_unpackhi_epi32,
                _mm256_unpacklo_epi64,
                _mm256_unpackhi_epi64
            );
            i = 0;
            while i < 4 {
                words[half + i] = Self(_mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]));
                words[half + i + 4] = Self(_mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]));
                i += 1;
            }
            half += 8;
        }
        words
    }

    #[inline(always)]
    unsafe fn store(self, to: &mut [u32; MOST]) {
        _mm256_storeu_si256(to.as_mut_ptr().cast(), self.0);
    }
}
