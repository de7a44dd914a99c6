//! Registers of x86-64: AES-NI, alone or for both halves of a wider register, and VAES.
//!
//! # Safety argument
//! As in [`super`].

use std::arch::x86_64::*;

use super::{ByteVector, Map, SlicedCipher, SlicedWidth, by_halves, by_tables};

impl<C: SlicedCipher> SlicedWidth<C> {
    const AES_NI: Self = Self { encrypt: on_16::<C, true>, decrypt: on_16::<C, false>, blocks: 16 };
    const HALVES: Self = Self { encrypt: on_halves::<C, true>, decrypt: on_halves::<C, false>, blocks: 32 };
    const VAES: Self = Self { encrypt: on_32::<C, true>, decrypt: on_32::<C, false>, blocks: 32 };
    const WIDEST: Self = Self { encrypt: on_64::<C, true>, decrypt: on_64::<C, false>, blocks: 64 };
    const VAES_GFNI: Self =
        Self { encrypt: on_32_gfni::<C, true>, decrypt: on_32_gfni::<C, false>, blocks: 32 };
    const WIDEST_GFNI: Self =
        Self { encrypt: on_64_gfni::<C, true>, decrypt: on_64_gfni::<C, false>, blocks: 64 };

    /// AES-NI with AVX; with AVX2; VAES with AVX2; with AVX-512; the last two with GFNI.
    pub(in super::super) const AVX: &'static [Self] = &[Self::AES_NI];
    pub(in super::super) const AVX2: &'static [Self] = &[Self::HALVES, Self::AES_NI];
    pub(in super::super) const VAES_AVX2: &'static [Self] = &[Self::VAES, Self::AES_NI];
    pub(in super::super) const AVX512: &'static [Self] = &[Self::WIDEST, Self::VAES, Self::AES_NI];
    pub(in super::super) const GFNI_AVX2: &'static [Self] = &[Self::VAES_GFNI, Self::AES_NI];
    pub(in super::super) const GFNI_AVX512: &'static [Self] =
        &[Self::WIDEST_GFNI, Self::VAES_GFNI, Self::AES_NI];
    /// The last one alone.
    pub(in super::super) const WIDEST_ALONE: &'static [Self] = &[Self::WIDEST_GFNI];
}

vector!(
    Sixteen(__m128i), on_16, "aes,avx",
    _mm_loadu_si128 _mm_storeu_si128 _mm_set1_epi32 once _mm_xor_si128 _mm_and_si128 _mm_or_si128 _mm_shuffle_epi8
    _mm_unpacklo_epi8 _mm_unpackhi_epi8 _mm_unpacklo_epi32 _mm_unpackhi_epi32 _mm_add_epi8,
    _mm_slli_epi32 _mm_srli_epi32 substitute16 restore16 by_halves by_tables
);
vector!(
    Halves(__m256i), on_halves, "aes,avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 twice _mm256_xor_si256 _mm256_and_si256
    _mm256_or_si256 _mm256_shuffle_epi8 _mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi32 _mm256_unpackhi_epi32
    _mm256_add_epi8,
    _mm256_slli_epi32 _mm256_srli_epi32 substitute_halves restore_halves by_halves by_tables
);
vector!(
    ThirtyTwo(__m256i), on_32, "vaes,avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 twice _mm256_xor_si256 _mm256_and_si256
    _mm256_or_si256 _mm256_shuffle_epi8 _mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi32 _mm256_unpackhi_epi32
    _mm256_add_epi8,
    _mm256_slli_epi32 _mm256_srli_epi32 substitute32 restore32 by_halves by_tables
);
vector!(
    SixtyFour(__m512i), on_64, "vaes,avx512f,avx512bw",
    _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 four_times _mm512_xor_si512 _mm512_and_si512
    _mm512_or_si512 _mm512_shuffle_epi8 _mm512_unpacklo_epi8 _mm512_unpackhi_epi8 _mm512_unpacklo_epi32 _mm512_unpackhi_epi32
    _mm512_add_epi8,
    left64 right64 substitute64 restore64 by_halves by_tables
);
vector!(
    Fields32(__m256i), on_32_gfni, "gfni,vaes,avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 twice _mm256_xor_si256 _mm256_and_si256
    _mm256_or_si256 _mm256_shuffle_epi8 _mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi32 _mm256_unpackhi_epi32
    _mm256_add_epi8,
    _mm256_slli_epi32 _mm256_srli_epi32 substitute32 restore32 matrix32 by_tables
);
vector!(
    Fields64(__m512i), on_64_gfni, "gfni,vaes,avx512f,avx512bw,avx512vbmi",
    _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 four_times _mm512_xor_si512 _mm512_and_si512
    _mm512_or_si512 _mm512_shuffle_epi8 _mm512_unpacklo_epi8 _mm512_unpackhi_epi8 _mm512_unpacklo_epi32 _mm512_unpackhi_epi32
    _mm512_add_epi8,
    left64 right64 substitute64 restore64 matrix64 look_up64
);

#[inline(always)]
unsafe fn matrix32(x: Fields32, map: &Map) -> Fields32 {
    // SAFETY: see above.
    unsafe {
        let matrix = _mm256_set1_epi64x(map.matrix.cast_signed());
        Fields32(_mm256_gf2p8affine_epi64_epi8::<0>(x.0, matrix)).xor(Fields32::every(map.plus))
    }
}

#[inline(always)]
unsafe fn matrix64(x: Fields64, map: &Map) -> Fields64 {
    // SAFETY: see above.
    unsafe {
        let matrix = _mm512_set1_epi64(map.matrix.cast_signed());
        Fields64(_mm512_gf2p8affine_epi64_epi8::<0>(x.0, matrix)).xor(Fields64::every(map.plus))
    }
}

/// By halves of 128 entries, of which the top bit says which.
#[inline(always)]
unsafe fn look_up64(x: Fields64, table: &[u8; 256]) -> Fields64 {
    // SAFETY: the table is four registers; see above.
    unsafe {
        let part = |nth: usize| _mm512_loadu_si512(table.as_ptr().add(64 * nth).cast());
        let low = _mm512_permutex2var_epi8(part(0), x.0, part(1));
        let high = _mm512_permutex2var_epi8(part(2), x.0, part(3));
        Fields64(_mm512_mask_blend_epi8(_mm512_movepi8_mask(x.0), low, high))
    }
}

#[inline(always)]
unsafe fn once(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are read; see above.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline(always)]
unsafe fn twice(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_broadcastsi128_si256(once(bytes)) }
}

#[inline(always)]
unsafe fn four_times(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_broadcast_i32x4(once(bytes)) }
}

#[inline(always)]
unsafe fn substitute16(x: __m128i) -> __m128i {
    // SAFETY: see above.
    unsafe { _mm_aesenclast_si128(x, _mm_setzero_si128()) }
}

#[inline(always)]
unsafe fn restore16(x: __m128i) -> __m128i {
    // SAFETY: see above.
    unsafe { _mm_aesdeclast_si128(x, _mm_setzero_si128()) }
}

#[inline(always)]
unsafe fn substitute_halves(x: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        _mm256_set_m128i(substitute16(high), substitute16(low))
    }
}

#[inline(always)]
unsafe fn restore_halves(x: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        _mm256_set_m128i(restore16(high), restore16(low))
    }
}

#[inline(always)]
unsafe fn substitute32(x: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_aesenclast_epi128(x, _mm256_setzero_si256()) }
}

#[inline(always)]
unsafe fn restore32(x: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_aesdeclast_epi128(x, _mm256_setzero_si256()) }
}

#[inline(always)]
unsafe fn substitute64(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_aesenclast_epi128(x, _mm512_setzero_si512()) }
}

#[inline(always)]
unsafe fn restore64(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_aesdeclast_epi128(x, _mm512_setzero_si512()) }
}

#[inline(always)]
unsafe fn left64<const BITS: i32>(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_sllv_epi32(x, _mm512_set1_epi32(BITS)) }
}

#[inline(always)]
unsafe fn right64<const BITS: i32>(x: __m512i) -> __m512i {
    // SAFETY: see above.
    unsafe { _mm512_srlv_epi32(x, _mm512_set1_epi32(BITS)) }
}
