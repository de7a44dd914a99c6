//! The words of 4, 8 and 16 blocks: one type for each width of register, and the functions that are
//! compiled for it.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. Values of these types come from [`SerpentWords`]' methods
//! only, and these are called from the entry points only, which [`super::functions`] hands out only
//! for a processor with their features.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::{BitAnd, BitOr, BitXor, Not};

use super::boxes::Bits;
use super::rounds::{self, SerpentWords};
#[cfg(target_arch = "x86_64")]
use super::ternary::{self, Ternary};
use super::{Keys, SerpentFunctions};
#[cfg(target_arch = "aarch64")]
use crate::kernel::words::four::{high_pairs, low_pairs};

macro_rules! vector {
    (
        $name:ident($vector:ty), $lanes:literal, $table:ident, $entry:ident, $features:literal,
        $load:ident $store:ident $set:ident $xor:ident $and:ident $or:ident $low:ident $high:ident $low2:ident $high2:ident,
        $rotate:ident $shift:ident $(, $($own:tt)*)?
    ) => {
        #[derive(Clone, Copy)]
        struct $name($vector);

        impl Bits for $name {}

        impl BitXor for $name {
            type Output = Self;

            #[inline(always)]
            fn bitxor(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { Self($xor(self.0, other.0)) }
            }
        }

        impl BitAnd for $name {
            type Output = Self;

            #[inline(always)]
            fn bitand(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { Self($and(self.0, other.0)) }
            }
        }

        impl BitOr for $name {
            type Output = Self;

            #[inline(always)]
            fn bitor(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { Self($or(self.0, other.0)) }
            }
        }

        impl Not for $name {
            type Output = Self;

            #[inline(always)]
            fn not(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($xor(self.0, $set(-1))) }
            }
        }

        impl SerpentWords for $name {
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn every(word: u32) -> Self {
                // SAFETY: see above.
                unsafe { Self($set(word.cast_signed())) }
            }

            #[inline(always)]
            unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($rotate::<LEFT, RIGHT>(self.0)) }
            }

            #[inline(always)]
            unsafe fn shift<const LEFT: i32>(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($shift::<LEFT>(self.0)) }
            }

            #[inline(always)]
            unsafe fn load(from: *const u8) -> [Self; 4] {
                // SAFETY: the caller's promise of memory; see above.
                unsafe {
                    let [a, b, c, d] = Self::turn([
                        $load(from.cast()),
                        $load(from.add(4 * $lanes).cast()),
                        $load(from.add(8 * $lanes).cast()),
                        $load(from.add(12 * $lanes).cast()),
                    ]);
                    [Self(a), Self(b), Self(c), Self(d)]
                }
            }

            #[inline(always)]
            unsafe fn store(words: [Self; 4], to: *mut u8) {
                // SAFETY: the caller's promise of memory; see above.
                unsafe {
                    let [a, b, c, d] = Self::turn([words[0].0, words[1].0, words[2].0, words[3].0]);
                    $store(to.cast(), a);
                    $store(to.add(4 * $lanes).cast(), b);
                    $store(to.add(8 * $lanes).cast(), c);
                    $store(to.add(12 * $lanes).cast(), d);
                }
            }

            $($($own)*)?
        }

        impl $name {
            /// Rows of blocks become columns of words, and these rows again: in each 128 bits on
            /// their own, so that blocks lie in lanes in another order, which nothing looks at.
            #[inline(always)]
            unsafe fn turn([a, b, c, d]: [$vector; 4]) -> [$vector; 4] {
                // SAFETY: see above.
                unsafe {
                    let (ab, cd) = ([$low(a, b), $high(a, b)], [$low(c, d), $high(c, d)]);
                    [$low2(ab[0], cd[0]), $high2(ab[0], cd[0]), $low2(ab[1], cd[1]), $high2(ab[1], cd[1])]
                }
            }
        }

        pub(super) static $table: SerpentFunctions = SerpentFunctions { encrypt: $entry::<true>, decrypt: $entry::<false> };

        #[target_feature(enable = $features)]
        unsafe fn $entry<const ENCRYPT: bool>(keys: &Keys, blocks: &mut [[u8; 16]]) {
            // SAFETY: the features are these.
            unsafe { rounds::blocks::<$name, ENCRYPT>(keys, blocks) }
        }
    };
}

#[cfg(target_arch = "aarch64")]
vector!(
    Four(uint32x4_t), 4, NEON, four, "neon",
    vld1q_u32 vst1q_u32 set veorq_u32 vandq_u32 vorrq_u32
    vzip1q_u32 vzip2q_u32 low_pairs high_pairs,
    rotate vshlq_n_u32,

    // With four the compiler keeps round keys on the stack.
    const FOUR_IN_TURN: bool = false;
);
#[cfg(target_arch = "x86_64")]
vector!(
    Four(__m128i), 4, AVX, four, "avx",
    _mm_loadu_si128 _mm_storeu_si128 _mm_set1_epi32 _mm_xor_si128 _mm_and_si128 _mm_or_si128
    _mm_unpacklo_epi32 _mm_unpackhi_epi32 _mm_unpacklo_epi64 _mm_unpackhi_epi64,
    rotate4 _mm_slli_epi32
);
#[cfg(target_arch = "x86_64")]
vector!(
    Eight(__m256i), 8, AVX2, eight, "avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_xor_si256 _mm256_and_si256 _mm256_or_si256
    _mm256_unpacklo_epi32 _mm256_unpackhi_epi32 _mm256_unpacklo_epi64 _mm256_unpackhi_epi64,
    rotate8 _mm256_slli_epi32
);
#[cfg(target_arch = "x86_64")]
vector!(
    Sixteen(__m512i), 16, AVX512, sixteen, "avx512f",
    _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 _mm512_xor_si512 _mm512_and_si512 _mm512_or_si512
    _mm512_unpacklo_epi32 _mm512_unpackhi_epi32 _mm512_unpacklo_epi64 _mm512_unpackhi_epi64,
    rotate16 shift16,

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self::of::<0x96>(self, b, c) }
    }

    #[inline(always)]
    unsafe fn substitute<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: see above.
        unsafe { ternary::substitute::<Self, N>(x, key.map(|word| Self::every(word))) }
    }

    #[inline(always)]
    unsafe fn restore<const N: usize>(x: [Self; 4], key: &[u32; 4]) -> [Self; 4] {
        // SAFETY: see above.
        unsafe { ternary::restore::<Self, N>(x, key.map(|word| Self::every(word))) }
    }
);

#[cfg(target_arch = "x86_64")]
impl Ternary for Sixteen {
    #[inline(always)]
    unsafe fn of<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm512_ternarylogic_epi32::<TABLE>(a.0, b.0, c.0)) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rotate4<const LEFT: i32, const RIGHT: i32>(x: __m128i) -> __m128i {
    // SAFETY: see above.
    unsafe { _mm_or_si128(_mm_slli_epi32::<LEFT>(x), _mm_srli_epi32::<RIGHT>(x)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rotate8<const LEFT: i32, const RIGHT: i32>(x: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_or_si256(_mm256_slli_epi32::<LEFT>(x), _mm256_srli_epi32::<RIGHT>(x)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rotate16<const LEFT: i32, const RIGHT: i32>(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_rol_epi32::<LEFT>(x) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn shift16<const LEFT: i32>(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_sllv_epi32(x, _mm512_set1_epi32(LEFT)) }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn set(word: i32) -> uint32x4_t {
    // SAFETY: see above.
    unsafe { vdupq_n_u32(word.cast_unsigned()) }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(x: uint32x4_t) -> uint32x4_t {
    // SAFETY: see above.
    unsafe { vsliq_n_u32::<LEFT>(vshrq_n_u32::<RIGHT>(x), x) }
}
