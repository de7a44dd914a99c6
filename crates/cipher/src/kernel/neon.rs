//! A block in each register: the AES and PMULL instructions of aarch64.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. [`super::table`] hands these functions out only for a
//! processor with these instructions.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::aarch64::*;

use super::IN_FLIGHT;
use super::schedule::RoundKey;
use super::vector::{Vector, read_once};

super::table::entry_points!(super::Blocks1, "neon,aes");

#[derive(Clone, Copy)]
pub(super) struct Blocks1(uint8x16_t);

/// `SubWord` of FIPS-197: with all columns equal, `ShiftRows` changes nothing, and a zero key adds
/// nothing.
///
/// # Safety
/// The processor has the AES instructions.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn sub_word(word: u32) -> u32 {
    let columns = vreinterpretq_u8_u32(vdupq_n_u32(word));
    vgetq_lane_u32::<0>(vreinterpretq_u32_u8(vaeseq_u8(columns, vdupq_n_u8(0))))
}

/// The product of two halves.
#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn product(a: u64, b: u64) -> Blocks1 {
    Blocks1(vreinterpretq_u8_p128(vmull_p64(a, b)))
}

impl Blocks1 {
    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn low(self) -> u64 {
        vgetq_lane_p64::<0>(vreinterpretq_p64_u8(self.0))
    }

    /// The product of the high halves.
    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn product_of_high(a: uint8x16_t, b: uint8x16_t) -> Self {
        Self(vreinterpretq_u8_p128(vmull_high_p64(vreinterpretq_p64_u8(a), vreinterpretq_p64_u8(b))))
    }

    /// Shifts words of 64 bits to the left by `left` bits, or to the right for a negative number.
    #[inline(always)]
    unsafe fn shifted(self, left: i64) -> Self {
        Self(vreinterpretq_u8_u64(vshlq_u64(vreinterpretq_u64_u8(self.0), vdupq_n_s64(left))))
    }

    /// `InvMixColumns`.
    #[inline]
    #[target_feature(enable = "neon,aes")]
    pub(super) unsafe fn unmix(self) -> Self {
        Self(vaesimcq_u8(self.0))
    }
}

/// The instructions add their key first, while the cipher adds it last: so they add zero here, and
/// the compiler replaces it by the key of the round before.
impl Vector for Blocks1 {
    const SPILLS: bool = false;
    const FOLDS: bool = true;
    const BLOCKS: usize = 1;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(vld1q_u8(at))
    }

    #[inline(always)]
    unsafe fn load_shared(at: *const u8) -> Self {
        Self(read_once(at))
    }

    #[inline(always)]
    unsafe fn key(at: *const RoundKey) -> Self {
        Self(vld1q_u8(at.cast()))
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        vst1q_u8(at, self.0);
    }

    #[inline(always)]
    unsafe fn repeat(block: *const u8) -> Self {
        Self::load(block)
    }

    #[inline(always)]
    unsafe fn numbers(first: u64, _shift: u32) -> Self {
        Self(vreinterpretq_u8_u64(vsetq_lane_u64::<0>(first, vdupq_n_u64(0))))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(veorq_u8(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        Self(vandq_u8(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        self.xor(b).xor(c)
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn encrypt_round(self, key: Self) -> Self {
        Self(vaesmcq_u8(vaeseq_u8(self.0, vdupq_n_u8(0)))).xor(key)
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        Self(vaeseq_u8(self.0, vdupq_n_u8(0))).xor(key)
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn decrypt_round(self, key: Self) -> Self {
        Self(vaesimcq_u8(vaesdq_u8(self.0, vdupq_n_u8(0)))).xor(key)
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        Self(vaesdq_u8(self.0, vdupq_n_u8(0))).xor(key)
    }

    #[inline(always)]
    unsafe fn powers(self) -> [Self; IN_FLIGHT] {
        let halves = self.swap_halves();
        let mut t = [self; IN_FLIGHT];
        let mut k = 1;
        while k < IN_FLIGHT {
            // Bits that leave a half go to the other half: low is carried into high, and high comes
            // back as h*1.
            let over = halves.shifted(k as i64 - 64);
            // The rest is x^7 + x^2 + x.
            t[k] = self.shifted(k as i64).xor3(over, product(over.low(), 0x86));
            k += 1;
        }
        t
    }

    #[inline(always)]
    unsafe fn advance(self) -> Self {
        // By x^8.
        let shifted = Self(vextq_u8::<15>(vdupq_n_u8(0), self.0));
        let polynomial = vreinterpretq_u8_u64(vdupq_n_u64(0x87));
        shifted.xor(Self::product_of_high(self.shifted(-56).0, polynomial))
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
        let sum = vaddq_u32(vreinterpretq_u32_u8(self.0), vreinterpretq_u32_u8(other.0));
        Self(vreinterpretq_u8_u32(sum))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        Self(vrev64q_u8(self.0)).swap_halves()
    }

    #[inline(always)]
    unsafe fn swap_halves(self) -> Self {
        Self(vextq_u8::<8>(self.0, self.0))
    }

    #[inline(always)]
    unsafe fn product_low(self, other: Self) -> Self {
        product(self.low(), other.low())
    }

    #[inline(always)]
    unsafe fn product_high(self, other: Self) -> Self {
        Self::product_of_high(self.0, other.0)
    }

    #[inline(always)]
    unsafe fn product_mixed(self, other: Self) -> Self {
        let turned = other.swap_halves();
        self.product_low(turned).xor(self.product_high(turned))
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
