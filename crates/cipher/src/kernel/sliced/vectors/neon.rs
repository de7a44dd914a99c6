//! Registers of 16 bytes: NEON and the AES instructions of aarch64.
//!
//! # Safety argument
//! As in [`super`].

use std::arch::aarch64::*;

use super::{ByteVector, Map, SlicedCipher, SlicedWidth, by_halves, by_tables};

impl<C: SlicedCipher> SlicedWidth<C> {
    pub(in super::super) const NEON: &'static [Self] =
        &[Self { encrypt: on_16::<C, true>, decrypt: on_16::<C, false>, blocks: 16 }];
}

vector!(
    Sixteen(uint8x16_t), on_16, "neon,aes",
    vld1q_u8 vst1q_u8 every repeat veorq_u8 vandq_u8 vorrq_u8 vqtbl1q_u8
    vzip1q_u8 vzip2q_u8 low_words high_words vaddq_u8,
    left right substitute restore by_halves by_tables
);

#[inline(always)]
unsafe fn every(word: i32) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vreinterpretq_u8_s32(vdupq_n_s32(word)) }
}

#[inline(always)]
unsafe fn repeat(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are read; see above.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline(always)]
unsafe fn low_words(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b))) }
}

#[inline(always)]
unsafe fn high_words(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b))) }
}

#[inline(always)]
unsafe fn left<const BITS: i32>(x: uint8x16_t) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vreinterpretq_u8_u32(vshlq_n_u32::<BITS>(vreinterpretq_u32_u8(x))) }
}

#[inline(always)]
unsafe fn right<const BITS: i32>(x: uint8x16_t) -> uint8x16_t {
    // SAFETY: see above.
    unsafe { vreinterpretq_u8_u32(vshrq_n_u32::<BITS>(vreinterpretq_u32_u8(x))) }
}

#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn substitute(x: uint8x16_t) -> uint8x16_t {
    vaeseq_u8(x, vdupq_n_u8(0))
}

#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn restore(x: uint8x16_t) -> uint8x16_t {
    vaesdq_u8(x, vdupq_n_u8(0))
}
