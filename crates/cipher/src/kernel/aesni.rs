//! Vector code with one block a register: AES-NI, PCLMULQDQ and AVX's three-operand forms (Sandy
//! Bridge, Bulldozer and later).
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. [`super::table`] hands these functions out only for a
//! processor with these instructions.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::x86_64::*;

use super::IN_FLIGHT;
use super::schedule::RoundKey;
use super::vector::{Vector, read_once};

super::table::entry_points!(super::Blocks1, "avx,aes,pclmulqdq");

#[derive(Clone, Copy)]
pub(super) struct Blocks1(pub(super) __m128i);

/// `SubWord` of FIPS-197: with all columns equal, `ShiftRows` changes nothing, and a zero key adds
/// nothing.
///
/// # Safety
/// The processor has AES-NI and SSE4.1.
#[inline(always)]
pub(super) unsafe fn sub_word(word: u32) -> u32 {
    let columns = _mm_set1_epi32(word.cast_signed());
    _mm_cvtsi128_si32(_mm_aesenclast_si128(columns, _mm_setzero_si128())).cast_unsigned()
}

impl Blocks1 {
    /// `InvMixColumns`.
    #[inline(always)]
    pub(super) unsafe fn unmix(self) -> Self {
        Self(_mm_aesimc_si128(self.0))
    }
}

impl Vector for Blocks1 {
    const SPILLS: bool = true;
    const FOLDS: bool = true;
    const BLOCKS: usize = 1;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(_mm_loadu_si128(at.cast()))
    }

    #[inline(always)]
    unsafe fn load_shared(at: *const u8) -> Self {
        Self(read_once(at))
    }

    #[inline(always)]
    unsafe fn key(at: *const RoundKey) -> Self {
        Self(at.cast::<__m128i>().read())
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        _mm_storeu_si128(at.cast(), self.0);
    }

    #[inline(always)]
    unsafe fn repeat(block: *const u8) -> Self {
        Self::load(block)
    }

    #[inline(always)]
    unsafe fn numbers(first: u64, _shift: u32) -> Self {
        Self(_mm_cvtsi64_si128(first.cast_signed()))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(_mm_xor_si128(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        Self(_mm_and_si128(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        Self(_mm_xor_si128(_mm_xor_si128(self.0, b.0), c.0))
    }

    #[inline(always)]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        Self(_mm_aesenc_si128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        Self(_mm_aesenclast_si128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        Self(_mm_aesdec_si128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        Self(_mm_aesdeclast_si128(self.0, key.0))
    }

    #[inline(always)]
    unsafe fn powers(self) -> [Self; IN_FLIGHT] {
        let halves = _mm_shuffle_epi32::<0x4E>(self.0);
        let mut t = [self; IN_FLIGHT];
        let mut k = 1;
        while k < IN_FLIGHT {
            let (left, right) = (_mm_cvtsi64_si128(k as i64), _mm_cvtsi64_si128(64 - k as i64));
            // Bits that leave a half go to the other half: low is carried into high, and high comes
            // back as h*1.
            let over = _mm_srl_epi64(halves, right);
            // The rest is x^7 + x^2 + x.
            let folded = _mm_clmulepi64_si128::<0x00>(over, _mm_set1_epi64x(0x86));
            t[k] = Self(_mm_xor_si128(_mm_xor_si128(_mm_sll_epi64(self.0, left), over), folded));
            k += 1;
        }
        t
    }

    #[inline(always)]
    unsafe fn advance(self) -> Self {
        // By x^8.
        let shifted = _mm_bslli_si128::<1>(self.0);
        let over = _mm_srli_epi64::<56>(self.0);
        Self(_mm_xor_si128(shifted, _mm_clmulepi64_si128::<0x01>(over, _mm_set1_epi64x(0x87))))
    }

    #[inline(always)]
    unsafe fn preceded_by(self, before: Self) -> Self {
        before
    }

    #[inline(always)]
    unsafe fn gather(at: *const u8, offsets: *const usize) -> Self {
        Self::load(at.add(*offsets))
    }

    #[inline(always)]
    unsafe fn scatter(self, at: *mut u8, offsets: *const usize) {
        self.store(at.add(*offsets));
    }

    #[inline(always)]
    unsafe fn add_words(self, other: Self) -> Self {
        Self(_mm_add_epi32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        Self(_mm_shuffle_epi8(self.0, reversed))
    }

    #[inline(always)]
    unsafe fn swap_halves(self) -> Self {
        Self(_mm_shuffle_epi32::<0x4E>(self.0))
    }

    #[inline(always)]
    unsafe fn product_low(self, other: Self) -> Self {
        Self(_mm_clmulepi64_si128::<0x00>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_high(self, other: Self) -> Self {
        Self(_mm_clmulepi64_si128::<0x11>(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn product_mixed(self, other: Self) -> Self {
        Self(_mm_clmulepi64_si128::<0x01>(self.0, other.0))
            .xor(Self(_mm_clmulepi64_si128::<0x10>(self.0, other.0)))
    }

    #[inline(always)]
    unsafe fn sum(self) -> Blocks1 {
        self
    }

    #[inline(always)]
    unsafe fn in_front(block: Blocks1) -> Self {
        block
    }
}
