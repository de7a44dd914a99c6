//! Four words: NEON.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. The entry points that use them are handed out only for a
//! processor with these instructions.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::aarch64::*;

use super::{WordVector, columns_of_four};

#[derive(Clone, Copy)]
pub(in crate::kernel) struct Four(uint32x4_t);

/// Bytes of words turned to the left by 16 and by 8 bits.
const TURNS: [[u8; 16]; 2] = [
    [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13],
    [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14],
];

/// The low halves of two vectors.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
pub(in crate::kernel) unsafe fn low_pairs(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

/// The high halves of two vectors.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
pub(in crate::kernel) unsafe fn high_pairs(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

/// Exchanges rows and columns.
#[inline(always)]
unsafe fn transpose([a, b, c, d]: [Four; 4]) -> [Four; 4] {
    let rows = [a.0, b.0, c.0, d.0];
    let [a, b, c, d] = columns_of_four!(rows, vzip1q_u32, vzip2q_u32, low_pairs, high_pairs);
    [Four(a), Four(b), Four(c), Four(d)]
}

impl WordVector for Four {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        Self(vdupq_n_u32(word))
    }

    #[inline(always)]
    unsafe fn lanes() -> Self {
        Self(vld1q_u32([0, 1, 2, 3].as_ptr()))
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        Self(vreinterpretq_u32_u8(vld1q_u8(at)))
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8) {
        vst1q_u8(at, vreinterpretq_u8_u32(self.0));
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(vaddq_u32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(vsubq_u32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(veorq_u32(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        self.xor(b).xor(c)
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        // Where the first two differ, the third decides.
        self.xor(b).choose(c, b)
    }

    #[inline(always)]
    unsafe fn shift_right<const BY: i32>(self) -> Self {
        Self(vshrq_n_u32::<BY>(self.0))
    }

    #[inline(always)]
    unsafe fn swap_bytes(self) -> Self {
        Self(vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(self.0))))
    }

    #[inline(always)]
    unsafe fn choose(self, a: Self, b: Self) -> Self {
        Self(vbslq_u32(self.0, a.0, b.0))
    }

    #[inline(always)]
    unsafe fn add_chosen(self, by: Self, a: Self, b: Self) -> Self {
        Self(vaddq_u32(vaddq_u32(self.0, vbicq_u32(b.0, by.0)), vandq_u32(by.0, a.0)))
    }

    #[inline(always)]
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self {
        Self(veorq_u32(self.0, vornq_u32(a.0, b.0)))
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        Self(vsliq_n_u32::<LEFT>(vshrq_n_u32::<RIGHT>(self.0), self.0))
    }

    #[inline(always)]
    unsafe fn turns() -> [Self; 2] {
        [Self::load(TURNS[0].as_ptr()), Self::load(TURNS[1].as_ptr())]
    }

    #[inline(always)]
    unsafe fn turn<const LEFT: i32, const RIGHT: i32>(self, by: Self) -> Self {
        let turned = vqtbl1q_u8(vreinterpretq_u8_u32(self.0), vreinterpretq_u8_u32(by.0));
        Self(vreinterpretq_u32_u8(turned))
    }

    #[inline(always)]
    unsafe fn to_lanes(words: [Self; 16]) -> [Self; 16] {
        let (mut lanes, mut quarter) = (words, 0);
        while quarter < 4 {
            let at = 4 * quarter;
            let columns = transpose([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            let mut lane = 0;
            while lane < 4 {
                lanes[4 * lane + quarter] = columns[lane];
                lane += 1;
            }
            quarter += 1;
        }
        lanes
    }

    #[inline(always)]
    unsafe fn from_lanes(lanes: &[*const u8], at: usize) -> [Self; 16] {
        let mut words = [Self::every(0); 16];
        let mut quarter = 0;
        while quarter < 4 {
            let row = |lane: usize| Self::load(lanes[lane].add(at + 16 * quarter));
            let columns = transpose([row(0), row(1), row(2), row(3)]);
            let mut i = 0;
            while i < 4 {
                words[4 * quarter + i] = columns[i];
                i += 1;
            }
            quarter += 1;
        }
        words
    }
}
