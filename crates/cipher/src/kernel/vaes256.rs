//! Two blocks a register: AVX2 with VAES and VPCLMULQDQ (Zen 3, Alder Lake), and BMI2 for the work
//! of the integer units.
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

super::table::entry_points!(super::Blocks2, "avx,avx2,bmi2,vaes,vpclmulqdq,aes,pclmulqdq");

#[derive(Clone, Copy)]
pub(super) struct Blocks2(__m256i);

impl Vector for Blocks2 {
    const SPILLS: bool = true;
    const FOLDS: bool = true;
    const BLOCKS: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(_mm256_loadu_si256(at.cast()))
    }

    #[inline(always)]
    unsafe fn load_shared(at: *const u8) -> Self {
        Self(read_once(at))
    }

    #[inline(always)]
    unsafe fn key(at: *const RoundKey) -> Self {
        Self(at.cast::<__m256i>().read())
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        _mm256_storeu_si256(at.cast(), self.0);
    }

    #[inline(always)]
    unsafe fn repeat(block: *const u8) -> Self {
        Self(_mm256_broadcastsi128_si256(_mm_loadu_si128(block.cast())))
    }

    #[inline(always)]
    unsafe fn numbers(first: u64, shift: u32) -> Self {
        let second = first.wrapping_add(1 << shift);
        Self(_mm256_set_epi64x(0, second.cast_signed(), 0, first.cast_signed()))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(_mm256_xor_si256(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        Self(_mm256_and_si256(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        Self(_mm256_xor_si256(_mm256_xor_si256(self.0, b.0), c.0))
    }

    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        Self(_mm256_aesenc_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        Self(_mm256_aesenclast_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        Self(_mm256_aesdec_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        Self(_mm256_aesdeclast_epi128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn powers(self) -> [Self; IN_FLIGHT] {
        let halves = _mm256_shuffle_epi32::<0x4E>(self.0);
        let mut t = [self; IN_FLIGHT];
        let mut k = 0;
        while k < IN_FLIGHT {
            let left = _mm256_add_epi64(_mm256_set1_epi64x(2 * k as i64), _mm256_setr_epi64x(0, 0, 1, 1));
            // Bits that leave a half go to the other half: low is carried into high, and high comes
            // back as h*1. For x^0 the shift is by 64 and gives zero.
            let over = _mm256_srlv_epi64(halves, _mm256_sub_epi64(_mm256_set1_epi64x(64), left));
            // x^7 + x^2 + x remain.
            let folded = _mm256_clmulepi64_epi128::<0x00>(over, _mm256_set1_epi64x(0x86));
            let shifted = _mm256_sllv_epi64(self.0, left);
            t[k] = Self(_mm256_xor_si256(_mm256_xor_si256(shifted, over), folded));
            k += 1;
        }
        t
    }

    #[inline(always)]
    unsafe fn advance(self) -> Self {
        // By x^16.
        let shifted = _mm256_bslli_epi128::<2>(self.0);
        let over = _mm256_srli_epi64::<48>(self.0);
        Self(_mm256_xor_si256(shifted, _mm256_clmulepi64_epi128::<0x01>(over, _mm256_set1_epi64x(0x87))))
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: Self) -> Self {
        Self(_mm256_permute2x128_si256::<0x21>(before.0, self.0))
    }

    #[inline(always)]
    unsafe fn gather(at: *const u8, offsets: *const usize) -> Self {
        Self(_mm256_loadu2_m128i(at.add(*offsets.add(1)).cast(), at.add(*offsets).cast()))
    }

    #[inline(always)]
    unsafe fn scatter(self, at: *mut u8, offsets: *const usize) {
        _mm256_storeu2_m128i(at.add(*offsets.add(1)).cast(), at.add(*offsets).cast(), self.0);
    }

    #[inline(always)]
    unsafe fn add_words(self, other: Self) -> Self {
        Self(_mm256_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        Self(_mm256_shuffle_epi8(self.0, _mm256_broadcastsi128_si256(reversed)))
    }

    #[inline(always)]
    unsafe fn swap_halves(self) -> Self {
        Self(_mm256_shuffle_epi32::<0x4E>(self.0))
    }

    #[inline(always)]
    unsafe fn product_low(self, other: Self) -> Self {
        Self(_mm256_clmulepi64_epi128::<0x00>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_high(self, other: Self) -> Self {
        Self(_mm256_clmulepi64_epi128::<0x11>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_mixed(self, other: Self) -> Self {
        Self(_mm256_clmulepi64_epi128::<0x01>(self.0, other.0))
            .xor(Self(_mm256_clmulepi64_epi128::<0x10>(self.0, other.0)))
    }

    #[inline(always)]
    unsafe fn sum(self) -> Blocks1 {
        Blocks1(_mm_xor_si128(_mm256_castsi256_si128(self.0), _mm256_extracti128_si256::<1>(self.0)))
    }

    #[inline(always)]
    unsafe fn in_front(block: Blocks1) -> Self {
        Self(_mm256_zextsi128_si256(block.0))
    }
}
