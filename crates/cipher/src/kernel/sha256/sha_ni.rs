//! Two messages: the processor's instructions for SHA-256, which one message keeps waiting for their results.
//!
//! # Safety argument
//! The intrinsics touch no memory but through the pointers they are given, and are sound wherever their instructions exist.
//! [`super::Sha256Lanes`] hands this out only after the processor said that it has them.
#![expect(unsafe_op_in_unsafe_fn, reason = "each operation is unsafe for the one reason above")]

use std::arch::x86_64::*;

use super::{K, Lanes, MOST, Pointers};

#[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
pub(super) unsafe fn hmac(
    states: &[[u32; 8]; 2],
    heads: &Pointers,
    head: usize,
    sectors: &Pointers,
    bytes: usize,
    sums: &mut [[u8; 32]; MOST],
) {
    super::hmac::<Two>(states, heads, head, sectors, bytes, sums);
}

/// Of each message, words F E B A and H G D C, from the lowest up.
struct Two([[__m128i; 2]; 2]);

impl Lanes for Two {
    const LANES: usize = 2;

    #[inline(always)]
    unsafe fn start(state: &[u32; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
        Self([[_mm_set_epi32(a, b, e, f), _mm_set_epi32(c, d, g, h)]; 2])
    }

    #[inline(always)]
    unsafe fn compress(&mut self, blocks: &Pointers) {
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        let mut w = [[_mm_setzero_si128(); 4]; 2];
        for (w, block) in w.iter_mut().zip(blocks) {
            let mut i = 0;
            while i < 4 {
                w[i] = _mm_shuffle_epi8(_mm_loadu_si128(block.add(i * 16).cast()), swap);
                i += 1;
            }
        }
        let mut state = self.0;
        let mut i = 0;
        while i < 16 {
            let constants = _mm_loadu_si128(K.as_ptr().add(i * 4).cast());
            for ([feba, hgdc], w) in state.iter_mut().zip(&mut w) {
                let words = _mm_add_epi32(w[i % 4], constants);
                *hgdc = _mm_sha256rnds2_epu32(*hgdc, *feba, words);
                *feba = _mm_sha256rnds2_epu32(*feba, *hgdc, _mm_shuffle_epi32::<0x0e>(words));
                if i < 12 {
                    let [w0, w1, w2, w3] = [w[i % 4], w[(i + 1) % 4], w[(i + 2) % 4], w[(i + 3) % 4]];
                    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8::<4>(w3, w2));
                    w[i % 4] = _mm_sha256msg2_epu32(sum, w3);
                }
            }
            i += 1;
        }
        for (old, new) in self.0.iter_mut().flatten().zip(state.into_iter().flatten()) {
            *old = _mm_add_epi32(*old, new);
        }
    }

    #[inline(always)]
    unsafe fn digests(&self) -> [[u8; 32]; MOST] {
        let mut digests = [[0; 32]; MOST];
        for (digest, [feba, hgdc]) in digests.iter_mut().zip(self.0) {
            let (mut low, mut high) = ([0u32; 4], [0u32; 4]);
            _mm_storeu_si128(low.as_mut_ptr().cast(), feba);
            _mm_storeu_si128(high.as_mut_ptr().cast(), hgdc);
            let ([f, e, b, a], [h, g, d, c]) = (low, high);
            for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                *bytes = word.to_be_bytes();
            }
        }
        digests
    }
}
