//! The upper limits of the processor: AES rounds in registers only, and memory that is only
//! touched.

#![expect(unsafe_code, reason = "vector instructions")]

use std::hint::black_box;

/// The number of bytes that a call of [`aes_rounds`] stands for.
pub(crate) const AES_BYTES: usize = 1 << 20;

/// The register widths that AES rounds can run on here, widest first, by name.
pub(crate) fn widths() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let has = [
            ("zmm", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vaes")),
            ("ymm", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vaes")),
            ("xmm", is_x86_feature_detected!("avx") && is_x86_feature_detected!("aes")),
        ];
        has.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

/// Runs the AES rounds of [`AES_BYTES`] bytes, eight registers in flight, without loads, stores or
/// tweaks.
///
/// # Panics
/// When `width` is none of [`widths`].
pub(crate) fn aes_rounds(width: &str, rounds: usize) {
    assert!(widths().contains(&width), "no AES on {width}");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has the instructions: `widths` lists the register.
    unsafe {
        match (width, rounds) {
            ("zmm", 10) => x86::zmm::<10>(),
            ("zmm", 12) => x86::zmm::<12>(),
            ("zmm", _) => x86::zmm::<14>(),
            ("ymm", 10) => x86::ymm::<10>(),
            ("ymm", 12) => x86::ymm::<12>(),
            ("ymm", _) => x86::ymm::<14>(),
            (_, 10) => x86::xmm::<10>(),
            (_, 12) => x86::xmm::<12>(),
            _ => x86::xmm::<14>(),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = rounds;
}

/// Reads, changes and writes back every byte: the lower limit of an in-place cipher.
#[inline(never)]
pub(crate) fn read_xor_write(data: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F.
        unsafe { x86::xor(data) };
        return;
    }
    for byte in data.iter_mut() {
        *byte ^= 0x5a;
    }
    black_box(data);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::AES_BYTES;

    macro_rules! loops {
        ($name:ident, $features:literal, $bytes:literal, $set:ident, $round:ident, $last:ident) => {
            /// # Safety
            /// The processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<const ROUNDS: usize>() {
                let key = $set(black_box(0x5a));
                let mut x = [key; 8];
                for _ in 0..AES_BYTES / ($bytes * 8) {
                    for _ in 1..ROUNDS {
                        for x in &mut x {
                            *x = $round(*x, key);
                        }
                    }
                    for x in &mut x {
                        *x = $last(*x, key);
                    }
                }
                black_box(x);
            }
        };
    }

    loops!(zmm, "avx512f,vaes", 64, _mm512_set1_epi8, _mm512_aesenc_epi128, _mm512_aesenclast_epi128);
    loops!(ymm, "avx2,vaes", 32, _mm256_set1_epi8, _mm256_aesenc_epi128, _mm256_aesenclast_epi128);
    loops!(xmm, "avx,aes", 16, _mm_set1_epi8, _mm_aesenc_si128, _mm_aesenclast_si128);

    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn xor(data: &mut [u8]) {
        for line in data.as_chunks_mut::<64>().0 {
            let at = line.as_mut_ptr().cast();
            // SAFETY: the line is 64 bytes of `data`.
            unsafe {
                _mm512_storeu_si512(at, _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(0x5a)))
            };
        }
    }
}
