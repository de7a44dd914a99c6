//! Sixteen messages: AVX-512, which rotates, and has any function of three operands in one instruction.
//!
//! # Safety argument
//! The intrinsics touch no memory but through the pointers they are given, and are sound wherever their instructions exist.
//! [`super::Sha256Lanes`] hands this out only after the processor said that it has them.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::x86_64::*;

use super::{MOST, Pointers, Words, columns_of_four};

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn hmac(
    states: &[[u32; 8]; 2],
    heads: &Pointers,
    head: usize,
    sectors: &Pointers,
    bytes: usize,
    sums: &mut [[u8; 32]; MOST],
) {
    super::hmac::<Sixteen>(states, heads, head, sectors, bytes, sums);
}

#[derive(Clone, Copy)]
struct Sixteen(__m512i);

/// Truth tables of three operands: their sum, the first choosing between the others, their majority.
const XOR: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;

macro_rules! xor_of {
    ($a:expr, $b:expr, $c:expr) => {
        Self(_mm512_ternarylogic_epi32::<XOR>($a, $b, $c))
    };
}

impl Words for Sixteen {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        Self(_mm512_set1_epi32(word.cast_signed()))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm512_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sum0(self) -> Self {
        let x = self.0;
        xor_of!(_mm512_ror_epi32::<2>(x), _mm512_ror_epi32::<13>(x), _mm512_ror_epi32::<22>(x))
    }

    #[inline(always)]
    unsafe fn sum1(self) -> Self {
        let x = self.0;
        xor_of!(_mm512_ror_epi32::<6>(x), _mm512_ror_epi32::<11>(x), _mm512_ror_epi32::<25>(x))
    }

    #[inline(always)]
    unsafe fn sigma0(self) -> Self {
        let x = self.0;
        xor_of!(_mm512_ror_epi32::<7>(x), _mm512_ror_epi32::<18>(x), _mm512_srli_epi32::<3>(x))
    }

    #[inline(always)]
    unsafe fn sigma1(self) -> Self {
        let x = self.0;
        xor_of!(_mm512_ror_epi32::<17>(x), _mm512_ror_epi32::<19>(x), _mm512_srli_epi32::<10>(x))
    }

    #[inline(always)]
    unsafe fn choose(self, f: Self, g: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<CHOOSE>(self.0, f.0, g.0))
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        Self(_mm512_ternarylogic_epi32::<MAJORITY>(self.0, b.0, c.0))
    }

    #[inline(always)]
    unsafe fn load(blocks: &Pointers) -> [Self; 16] {
        let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
        let mut rows = [_mm512_setzero_si512(); 16];
        let mut i = 0;
        while i < 16 {
            rows[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(blocks[i].cast()), swap);
            i += 1;
        }
        let fours = columns_of_four!(
            rows,
            _mm512_unpacklo_epi32,
            _mm512_unpackhi_epi32,
            _mm512_unpacklo_epi64,
            _mm512_unpackhi_epi64
        );
        let mut words = [Self(rows[0]); 16];
        i = 0;
        while i < 4 {
            let [x0, x1, x2, x3] = [fours[i], fours[i + 4], fours[i + 8], fours[i + 12]];
            let (low, low_too) = (_mm512_shuffle_i32x4::<0x44>(x0, x1), _mm512_shuffle_i32x4::<0x44>(x2, x3));
            let (high, high_too) =
                (_mm512_shuffle_i32x4::<0xee>(x0, x1), _mm512_shuffle_i32x4::<0xee>(x2, x3));
            words[i] = Self(_mm512_shuffle_i32x4::<0x88>(low, low_too));
            words[i + 4] = Self(_mm512_shuffle_i32x4::<0xdd>(low, low_too));
            words[i + 8] = Self(_mm512_shuffle_i32x4::<0x88>(high, high_too));
            words[i + 12] = Self(_mm512_shuffle_i32x4::<0xdd>(high, high_too));
            i += 1;
        }
        words
    }

    #[inline(always)]
    unsafe fn store(self, to: &mut [u32; MOST]) {
        _mm512_storeu_si512(to.as_mut_ptr().cast(), self.0);
    }
}
