//! Eight words: AVX2.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. The entry points that use them are handed out only for a
//! processor with these instructions.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use super::{WordVector, columns_of_four};

#[derive(Clone, Copy)]
pub(in crate::kernel) struct Eight(__m256i);

/// [`WordVector::apart`]: a separate function, since only a function with the feature may name
/// registers.
#[inline]
#[target_feature(enable = "avx2")]
fn apart(mut sum: __m256i) -> __m256i {
    // SAFETY: nothing is done.
    unsafe { asm!("/* {} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

/// Exchanges rows and columns.
#[inline(always)]
unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let fours = columns_of_four!(
        rows,
        _mm256_unpacklo_epi32,
        _mm256_unpackhi_epi32,
        _mm256_unpacklo_epi64,
        _mm256_unpackhi_epi64
    );
    let (mut columns, mut i) = (rows, 0);
    while i < 4 {
        columns[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
        columns[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
        i += 1;
    }
    columns
}

impl WordVector for Eight {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        Self(_mm256_set1_epi32(word.cast_signed()))
    }

    #[inline(always)]
    unsafe fn lanes() -> Self {
        Self(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(_mm256_loadu_si256(at.cast()))
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        _mm256_storeu_si256(at.cast(), self.0);
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm256_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(_mm256_sub_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(_mm256_xor_si256(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        self.xor(b).xor(c)
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        let differ = _mm256_xor_si256(self.0, b.0);
        Self(_mm256_xor_si256(b.0, _mm256_and_si256(differ, _mm256_xor_si256(b.0, c.0))))
    }

    #[inline(always)]
    unsafe fn shift_right<const BY: i32>(self) -> Self {
        Self(_mm256_srli_epi32::<BY>(self.0))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        Self(_mm256_shuffle_epi8(self.0, swap))
    }

    #[inline(always)]
    unsafe fn choose(self, a: Self, b: Self) -> Self {
        Self(_mm256_xor_si256(b.0, _mm256_and_si256(self.0, _mm256_xor_si256(a.0, b.0))))
    }

    #[inline(always)]
    unsafe fn add_chosen(self, by: Self, a: Self, b: Self) -> Self {
        let sum = _mm256_add_epi32(self.0, _mm256_andnot_si256(by.0, b.0));
        Self(_mm256_add_epi32(sum, _mm256_and_si256(by.0, a.0)))
    }

    #[inline(always)]
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self {
        let not = _mm256_xor_si256(b.0, _mm256_set1_epi32(-1));
        Self(_mm256_xor_si256(self.0, _mm256_or_si256(a.0, not)))
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        Self(_mm256_or_si256(_mm256_slli_epi32::<LEFT>(self.0), _mm256_srli_epi32::<RIGHT>(self.0)))
    }

    #[inline(always)]
    unsafe fn turns() -> [Self; 2] {
        let by_16 = _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
        let by_8 = _mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14);
        // A compiler that knows them makes two shuffles of one.
        black_box([by_16, by_8].map(|by| Self(_mm256_broadcastsi128_si256(by))))
    }

    #[inline(always)]
    unsafe fn turn<const LEFT: i32, const RIGHT: i32>(self, by: Self) -> Self {
        Self(_mm256_shuffle_epi8(self.0, by.0))
    }

    #[inline(always)]
    unsafe fn to_lanes(words: [Self; 16]) -> [Self; 16] {
        let mut lanes = words;
        let mut half = 0;
        while half < 2 {
            let mut rows = [words[0].0; 8];
            let mut i = 0;
            while i < 8 {
                rows[i] = words[half * 8 + i].0;
                i += 1;
            }
            let columns = transpose(rows);
            i = 0;
            while i < 8 {
                lanes[2 * i + half] = Self(columns[i]);
                i += 1;
            }
            half += 1;
        }
        lanes
    }

    #[inline(always)]
    unsafe fn from_lanes(lanes: &[*const u8], at: usize) -> [Self; 16] {
        let mut words = [Self(_mm256_setzero_si256()); 16];
        let mut half = 0;
        while half < 2 {
            let mut rows = [words[0].0; 8];
            let mut i = 0;
            while i < 8 {
                rows[i] = _mm256_loadu_si256(lanes[i].add(at + half * 32).cast());
                i += 1;
            }
            let columns = transpose(rows);
            i = 0;
            while i < 8 {
                words[half * 8 + i] = Self(columns[i]);
                i += 1;
            }
            half += 1;
        }
        words
    }

    #[inline(always)]
    unsafe fn apart(self) -> Self {
        Self(apart(self.0))
    }
}
