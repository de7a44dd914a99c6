//! Sixteen words: AVX-512.
//!
//! # Safety argument
//! As in [`super::eight`].
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::{WordVector, columns_of_four};

#[derive(Clone, Copy)]
pub(in crate::kernel) struct Sixteen(__m512i);

/// Truth tables of three inputs.
const XOR: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;
const XOR_OR_NOT: i32 = 0x2d;

/// [`WordVector::apart`]: a separate function, since only a function with the feature may name
/// registers.
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(mut sum: __m512i) -> __m512i {
    // SAFETY: nothing is done.
    unsafe { asm!("/* {} */", inout(zmm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

/// The last half of exchanging rows and columns, of a vector of each four.
#[inline(always)]
unsafe fn columns([x0, x1, x2, x3]: [__m512i; 4]) -> [__m512i; 4] {
    let (low, low_too) = (_mm512_shuffle_i32x4::<0x44>(x0, x1), _mm512_shuffle_i32x4::<0x44>(x2, x3));
    let (high, high_too) = (_mm512_shuffle_i32x4::<0xee>(x0, x1), _mm512_shuffle_i32x4::<0xee>(x2, x3));
    [
        _mm512_shuffle_i32x4::<0x88>(low, low_too),
        _mm512_shuffle_i32x4::<0xdd>(low, low_too),
        _mm512_shuffle_i32x4::<0x88>(high, high_too),
        _mm512_shuffle_i32x4::<0xdd>(high, high_too),
    ]
}

/// Exchanges rows and columns.
#[inline(always)]
unsafe fn transpose(rows: [__m512i; 16]) -> [Sixteen; 16] {
    let fours = columns_of_four!(
        rows,
        _mm512_unpacklo_epi32,
        _mm512_unpackhi_epi32,
        _mm512_unpacklo_epi64,
        _mm512_unpackhi_epi64
    );
    let mut words = [Sixteen(rows[0]); 16];
    let mut i = 0;
    while i < 4 {
        let four = columns([fours[i], fours[i + 4], fours[i + 8], fours[i + 12]]);
        let mut k = 0;
        while k < 4 {
            words[i + 4 * k] = Sixteen(four[k]);
            k += 1;
        }
        i += 1;
    }
    words
}

impl WordVector for Sixteen {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        Self(_mm512_set1_epi32(word.cast_signed()))
    }

    #[inline(always)]
    unsafe fn lanes() -> Self {
        Self(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(_mm512_loadu_si512(at.cast()))
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        _mm512_storeu_si512(at.cast(), self.0);
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm512_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(_mm512_sub_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(_mm512_xor_si512(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<XOR>(self.0, b.0, c.0))
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<MAJORITY>(self.0, b.0, c.0))
    }

    #[inline(always)]
    unsafe fn shift_right<const BY: i32>(self) -> Self {
        Self(_mm512_srlv_epi32(self.0, _mm512_set1_epi32(BY)))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        Self(_mm512_shuffle_epi8(self.0, swap))
    }

    #[inline(always)]
    unsafe fn choose(self, a: Self, b: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<CHOOSE>(self.0, a.0, b.0))
    }

    #[inline(always)]
    unsafe fn add_chosen(self, by: Self, a: Self, b: Self) -> Self {
        self.add(by.choose(a, b))
    }

    #[inline(always)]
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<XOR_OR_NOT>(self.0, a.0, b.0))
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        Self(_mm512_rol_epi32::<LEFT>(self.0))
    }

    #[inline(always)]
    unsafe fn turns() -> [Self; 2] {
        [Self(_mm512_setzero_si512()); 2]
    }

    #[inline(always)]
    unsafe fn turn<const LEFT: i32, const RIGHT: i32>(self, _by: Self) -> Self {
        self.rotate::<LEFT, RIGHT>()
    }

    #[inline(always)]
    unsafe fn to_lanes(words: [Self; 16]) -> [Self; 16] {
        let mut rows = [words[0].0; 16];
        let mut i = 0;
        while i < 16 {
            rows[i] = words[i].0;
            i += 1;
        }
        transpose(rows)
    }

    #[inline(always)]
    unsafe fn from_lanes(lanes: &[*const u8], at: usize) -> [Self; 16] {
        let mut rows = [_mm512_setzero_si512(); 16];
        let mut i = 0;
        while i < 16 {
            rows[i] = _mm512_loadu_si512(lanes[i].add(at).cast());
            i += 1;
        }
        transpose(rows)
    }

    const PIECES: usize = 8;

    #[inline(always)]
    unsafe fn fetch(piece: usize, lanes: &[*const u8], at: usize, to: *mut Self) {
        let to = to.cast::<__m512i>();
        let nth = piece % 4;
        let mut four = [_mm512_setzero_si512(); 4];
        let mut i = 0;
        if piece < 4 {
            while i < 4 {
                four[i] = _mm512_loadu_si512(lanes[nth * 4 + i].add(at).cast());
                i += 1;
            }
            four = columns_of_four!(
                four,
                _mm512_unpacklo_epi32,
                _mm512_unpackhi_epi32,
                _mm512_unpacklo_epi64,
                _mm512_unpackhi_epi64
            );
        } else {
            while i < 4 {
                four[i] = to.add(nth + 4 * i).read_volatile();
                i += 1;
            }
            four = columns(four);
        }
        i = 0;
        // Volatile: through memory, and not kept in registers that others want.
        while i < 4 {
            to.add(if piece < 4 { nth * 4 + i } else { nth + 4 * i }).write_volatile(four[i]);
            i += 1;
        }
    }

    #[inline(always)]
    unsafe fn apart(self) -> Self {
        Self(apart(self.0))
    }
}
