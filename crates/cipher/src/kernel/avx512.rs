//! Four blocks a register: AVX-512 with VAES and VPCLMULQDQ (Zen 4 and later, Ice Lake and later).
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. [`super::table`] hands these functions out only for a
//! processor with these instructions.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::x86_64::*;

use super::IN_FLIGHT;
use super::aesni::Blocks1;
use super::schedule::RoundKey;
use super::vector::{Vector, read_once};

super::table::entry_points!(super::Blocks4, "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes");

#[derive(Clone, Copy)]
pub(super) struct Blocks4(__m512i);

impl Vector for Blocks4 {
    const SPILLS: bool = false;
    const FOLDS: bool = false;
    const BLOCKS: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(_mm512_loadu_si512(at.cast()))
    }

    #[inline(always)]
    unsafe fn load_shared(at: *const u8) -> Self {
        Self(read_once(at))
    }

    #[inline(always)]
    unsafe fn key(at: *const RoundKey) -> Self {
        Self(at.cast::<__m512i>().read())
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        _mm512_storeu_si512(at.cast(), self.0);
    }

    #[inline(always)]
    unsafe fn repeat(block: *const u8) -> Self {
        Self(_mm512_broadcast_i32x4(_mm_loadu_si128(block.cast())))
    }

    #[inline(always)]
    unsafe fn numbers(first: u64, shift: u32) -> Self {
        let steps = _mm512_sll_epi64(
            _mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0),
            _mm_cvtsi32_si128(shift.cast_signed()),
        );
        Self(_mm512_add_epi64(steps, _mm512_maskz_set1_epi64(0x55, first.cast_signed())))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(_mm512_xor_si512(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        Self(_mm512_and_si512(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        Self(_mm512_ternarylogic_epi64::<0x96>(self.0, b.0, c.0))
    }

    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        Self(_mm512_aesenc_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        Self(_mm512_aesenclast_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        Self(_mm512_aesdec_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        Self(_mm512_aesdeclast_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn powers(self) -> [Self; IN_FLIGHT] {
        let halves = _mm512_shuffle_epi32::<0x4E>(self.0);
        let top = _mm512_shuffle_epi32::<0xFF>(self.0);
        let lane = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
        let mut t = [self; IN_FLIGHT];
        let mut k = 0;
        while k < IN_FLIGHT {
            let left = _mm512_add_epi64(lane, _mm512_set1_epi64(4 * k as i64));
            // Bits that leave a half go to the other half: low is carried into high, and high comes
            // back as h*1. For x^0 the shift is by 64 and gives zero.
            let over = _mm512_srlv_epi64(halves, _mm512_sub_epi64(_mm512_set1_epi64(64), left));
            t[k] = Self(_mm512_xor_si512(_mm512_sllv_epi64(self.0, left), over));
            k += 1;
        }
        // The rest is h*(x^7 + x^2 + x). Multiplications compete with AES for its units, so each
        // makes two: h of vector k, at most 15 bits, below that of vector k + 4.
        let mut place = _mm512_setr_epi32(32, 16, 28, 12, 31, 15, 27, 11, 30, 14, 26, 10, 29, 13, 25, 9);
        let mut k = 0;
        while k < IN_FLIGHT / 2 {
            let high = _mm512_srlv_epi32(top, place);
            let poly = _mm512_set1_epi64(0x86);
            let products =
                [_mm512_clmulepi64_epi128::<0x00>(high, poly), _mm512_clmulepi64_epi128::<0x01>(high, poly)];
            let mut i = 0;
            while i < 2 {
                let low = _mm512_maskz_mov_epi32(0x1111, products[i]);
                let high = _mm512_maskz_shuffle_epi32::<0x39>(0x3333, products[i]);
                t[k + i] = Self(_mm512_xor_si512(t[k + i].0, low));
                t[k + i + 4] = Self(_mm512_xor_si512(t[k + i + 4].0, high));
                i += 1;
            }
            place = _mm512_sub_epi32(place, _mm512_set1_epi32(8));
            k += 2;
        }
        t
    }

    #[inline(always)]
    unsafe fn advance(self) -> Self {
        // By x^32: rotating the dwords already adds h*1.
        let rotated = _mm512_shuffle_epi32::<0x93>(self.0);
        let over = _mm512_maskz_mov_epi32(0x1111, rotated);
        Self(_mm512_xor_si512(rotated, _mm512_clmulepi64_epi128::<0x00>(over, _mm512_set1_epi64(0x86))))
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: Self) -> Self {
        Self(_mm512_alignr_epi64::<6>(self.0, before.0))
    }

    #[inline(always)]
    unsafe fn gather(at: *const u8, offsets: *const usize) -> Self {
        let low = _mm512_castsi128_si512(_mm_loadu_si128(at.add(*offsets).cast()));
        let two = _mm512_inserti32x4::<1>(low, _mm_loadu_si128(at.add(*offsets.add(1)).cast()));
        let three = _mm512_inserti32x4::<2>(two, _mm_loadu_si128(at.add(*offsets.add(2)).cast()));
        Self(_mm512_inserti32x4::<3>(three, _mm_loadu_si128(at.add(*offsets.add(3)).cast())))
    }

    #[inline(always)]
    unsafe fn scatter(self, at: *mut u8, offsets: *const usize) {
        _mm_storeu_si128(at.add(*offsets).cast(), _mm512_castsi512_si128(self.0));
        _mm_storeu_si128(at.add(*offsets.add(1)).cast(), _mm512_extracti32x4_epi32::<1>(self.0));
        _mm_storeu_si128(at.add(*offsets.add(2)).cast(), _mm512_extracti32x4_epi32::<2>(self.0));
        _mm_storeu_si128(at.add(*offsets.add(3)).cast(), _mm512_extracti32x4_epi32::<3>(self.0));
    }

    #[inline(always)]
    unsafe fn add_words(self, other: Self) -> Self {
        Self(_mm512_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        Self(_mm512_shuffle_epi8(self.0, _mm512_broadcast_i32x4(reversed)))
    }

    #[inline(always)]
    unsafe fn swap_halves(self) -> Self {
        Self(_mm512_shuffle_epi32::<0x4E>(self.0))
    }

    #[inline(always)]
    unsafe fn product_low(self, other: Self) -> Self {
        Self(_mm512_clmulepi64_epi128::<0x00>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_high(self, other: Self) -> Self {
        Self(_mm512_clmulepi64_epi128::<0x11>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_mixed(self, other: Self) -> Self {
        Self(_mm512_clmulepi64_epi128::<0x01>(self.0, other.0))
            .xor(Self(_mm512_clmulepi64_epi128::<0x10>(self.0, other.0)))
    }

    #[inline(always)]
    unsafe fn sum(self) -> Blocks1 {
        let half = _mm256_xor_si256(_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0));
        Blocks1(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)))
    }

    #[inline(always)]
    unsafe fn in_front(block: Blocks1) -> Self {
        Self(_mm512_zextsi128_si512(block.0))
    }
}
