//! Twofish without look-ups: 32 or 64 blocks at once, with S-boxes by permutes of registers.
//!
//! A table of 256 bytes is 16 rows. Each row is a permute of a register by the low half of every
//! byte, which gives zero where the byte's top bit is set: row i gets byte - 16 * i, so rows up to
//! the byte's own answer. The rows are chosen so that their sum is the table's entry. Bytes of 128
//! and more use the upper eight rows in the same way. The matrix is permutes too, by halves of
//! bytes. There are no look-ups in memory, so caches reveal nothing.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. [`widths`] hands the functions out only for a processor with
//! these instructions.

use std::arch::x86_64::*;

use super::schedule::{MDS_POLYNOMIAL, product};
use super::{Subkeys, Tables};
use crate::CpuPath;

/// The rows of the four S-boxes.
pub(super) type Boxes = [[[u8; 16]; 16]; 4];

/// Whole groups of blocks, in place.
type GroupsFn = unsafe fn(&Boxes, &Subkeys, &mut [[u8; 16]]);

/// The functions for one width of register.
pub(super) struct Width {
    pub(super) encrypt: GroupsFn,
    pub(super) decrypt: GroupsFn,
    /// Blocks in a group.
    pub(super) blocks: usize,
}

/// The widths of this path, the widest first.
pub(super) fn widths(path: CpuPath) -> &'static [Width] {
    static WIDTHS: [Width; 2] = [
        Width { encrypt: wide::encrypt, decrypt: wide::decrypt, blocks: 64 },
        Width { encrypt: narrow::encrypt, decrypt: narrow::decrypt, blocks: 32 },
    ];
    match path {
        CpuPath::Avx512 if path.is_available() => &WIDTHS,
        CpuPath::AesNi | CpuPath::Vaes256 if is_x86_feature_detected!("avx2") => &WIDTHS[1..],
        _ => &[],
    }
}

/// Makes the rows of the tables of g: of each entry the byte that the matrix has a 1 for.
pub(super) fn rows(tables: &Tables, boxes: &mut Boxes) {
    for ((rows, table), byte) in boxes.iter_mut().zip(tables).zip([0, 3, 2, 1]) {
        let entry = |at: usize| table[at].to_le_bytes()[byte];
        for (nth, row) in rows.iter_mut().enumerate() {
            for (low, sum) in row.iter_mut().enumerate() {
                // The sum of the rows before.
                let before = if nth % 8 == 0 { 0 } else { entry(16 * nth + low - 16) };
                *sum = entry(16 * nth + low) ^ before;
            }
        }
    }
}

/// Products by a factor of the matrix: of the low halves of bytes, and of the high ones.
const fn halves(factor: u8) -> [[u8; 16]; 2] {
    let mut halves = [[0; 16]; 2];
    let mut x = 0u8;
    while x < 16 {
        halves[0][x as usize] = product(factor, x, MDS_POLYNOMIAL);
        halves[1][x as usize] = product(factor, x << 4, MDS_POLYNOMIAL);
        x += 1;
    }
    halves
}

static BY_5B: [[u8; 16]; 2] = halves(0x5b);
static BY_EF: [[u8; 16]; 2] = halves(0xef);

/// Where the bytes of four words go, so that first bytes lie together, then second ones, and so on.
static BYTES_TOGETHER: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

macro_rules! width {
    (
        $name:ident: $vector:ty, $features:literal,
        $load:ident $store:ident $repeat:ident $set8:ident $set32:ident $xor:ident $or:ident $and:ident $add:ident $sub:ident,
        $permute:ident $right16:ident $right:ident $left:ident,
        $low8:ident $high8:ident $low16:ident $high16:ident $low32:ident $high32:ident $low64:ident $high64:ident
    ) => {
        mod $name {
            use super::*;

            /// Words, or bytes at one place of words, of all blocks.
            type Four = [$vector; 4];
            const BYTES: usize = size_of::<$vector>();

            /// # Safety
            /// The processor has the features; whole groups of blocks.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn encrypt(boxes: &Boxes, keys: &Subkeys, blocks: &mut [[u8; 16]]) {
                for group in blocks.chunks_exact_mut(BYTES) {
                    let at = group.as_mut_ptr().cast::<u8>();
                    // SAFETY: a group is 16 vectors.
                    let mut x = unsafe { load(at, &keys[..4]) };
                    for keys in keys[8..].as_chunks::<4>().0 {
                        let (f0, f1) = round(boxes, x[0], x[1], keys[0], keys[1]);
                        for n in 0..4 {
                            x[2][n] = rotate_right($xor(x[2][n], f0[n]));
                            x[3][n] = $xor(rotate_left(x[3][n]), f1[n]);
                        }
                        let (f0, f1) = round(boxes, x[2], x[3], keys[2], keys[3]);
                        for n in 0..4 {
                            x[0][n] = rotate_right($xor(x[0][n], f0[n]));
                            x[1][n] = $xor(rotate_left(x[1][n]), f1[n]);
                        }
                    }
                    // SAFETY: as above.
                    unsafe { store(at, x, &keys[4..8]) }
                }
            }

            /// # Safety
            /// As `encrypt`.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn decrypt(boxes: &Boxes, keys: &Subkeys, blocks: &mut [[u8; 16]]) {
                for group in blocks.chunks_exact_mut(BYTES) {
                    let at = group.as_mut_ptr().cast::<u8>();
                    // SAFETY: a group is 16 vectors.
                    let mut x = unsafe { load(at, &keys[4..8]) };
                    for keys in keys[8..].as_chunks::<4>().0.iter().rev() {
                        let (f0, f1) = round(boxes, x[0], x[1], keys[2], keys[3]);
                        for n in 0..4 {
                            x[2][n] = $xor(rotate_left(x[2][n]), f0[n]);
                            x[3][n] = rotate_right($xor(x[3][n], f1[n]));
                        }
                        let (f0, f1) = round(boxes, x[2], x[3], keys[0], keys[1]);
                        for n in 0..4 {
                            x[0][n] = $xor(rotate_left(x[0][n]), f0[n]);
                            x[1][n] = rotate_right($xor(x[1][n], f1[n]));
                        }
                    }
                    // SAFETY: as above.
                    unsafe { store(at, x, &keys[..4]) }
                }
            }

            /// F of a round.
            #[inline]
            #[target_feature(enable = $features)]
            fn round(boxes: &Boxes, a: Four, b: Four, k0: u32, k1: u32) -> (Four, Four) {
                let [b0, b1, b2, b3] = bytes(b);
                let (g0, g1) = (words(g(boxes, bytes(a))), words(g(boxes, [b3, b0, b1, b2])));
                let (mut f0, mut f1) = (g0, g1);
                for n in 0..4 {
                    let sum = $add(g0[n], g1[n]);
                    f0[n] = $add(sum, $set32(k0.cast_signed()));
                    f1[n] = $add($add(sum, g1[n]), $set32(k1.cast_signed()));
                }
                (f0, f1)
            }

            /// The S-boxes and the matrix.
            #[inline]
            #[target_feature(enable = $features)]
            fn g(boxes: &Boxes, [x0, x1, x2, x3]: Four) -> Four {
                let (w0, w1) = (factors(substitute(&boxes[0], x0)), factors(substitute(&boxes[1], x1)));
                let (w2, w3) = (factors(substitute(&boxes[2], x2)), factors(substitute(&boxes[3], x3)));
                [
                    $xor($xor(w0[0], w1[2]), $xor(w2[1], w3[1])),
                    $xor($xor(w0[1], w1[2]), $xor(w2[2], w3[0])),
                    $xor($xor(w0[2], w1[1]), $xor(w2[0], w3[2])),
                    $xor($xor(w0[2], w1[0]), $xor(w2[2], w3[1])),
                ]
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn substitute(rows: &[[u8; 16]; 16], x: $vector) -> $vector {
                let (mut low, mut high) = (x, $xor(x, $set8(-128)));
                let mut sum = $xor($permute(row(&rows[0]), low), $permute(row(&rows[8]), high));
                for n in 1..8 {
                    // The subtraction saturates at -128, so bytes below zero stay there.
                    (low, high) = ($sub(low, $set8(16)), $sub(high, $set8(16)));
                    let more = $xor($permute(row(&rows[n]), low), $permute(row(&rows[8 + n]), high));
                    sum = $xor(sum, more);
                }
                sum
            }

            /// Times 1, 5B and EF.
            #[inline]
            #[target_feature(enable = $features)]
            fn factors(x: $vector) -> [$vector; 3] {
                let low = $and(x, $set8(15));
                let high = $and($right16::<4>(x), $set8(15));
                let times =
                    |by: &[[u8; 16]; 2]| $xor($permute(row(&by[0]), low), $permute(row(&by[1]), high));
                [x, times(&BY_5B), times(&BY_EF)]
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn row(row: &[u8; 16]) -> $vector {
                // SAFETY: 16 bytes are read.
                $repeat(unsafe { _mm_loadu_si128(row.as_ptr().cast()) })
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn rotate_left(x: $vector) -> $vector {
                $or($left::<1>(x), $right::<31>(x))
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn rotate_right(x: $vector) -> $vector {
                $or($right::<1>(x), $left::<31>(x))
            }

            /// Of words: the first bytes of all, the second ones, ..
            #[inline]
            #[target_feature(enable = $features)]
            fn bytes([a, b, c, d]: Four) -> Four {
                let order = row(&BYTES_TOGETHER);
                let (a, b) = ($permute(a, order), $permute(b, order));
                let (c, d) = ($permute(c, order), $permute(d, order));
                let (first, third) = ([$low32(a, b), $low32(c, d)], [$high32(a, b), $high32(c, d)]);
                [
                    $low64(first[0], first[1]),
                    $high64(first[0], first[1]),
                    $low64(third[0], third[1]),
                    $high64(third[0], third[1]),
                ]
            }

            /// The reverse of `bytes`.
            #[inline]
            #[target_feature(enable = $features)]
            fn words([a, b, c, d]: Four) -> Four {
                let (front, back) = ([$low8(a, b), $low8(c, d)], [$high8(a, b), $high8(c, d)]);
                [
                    $low16(front[0], front[1]),
                    $high16(front[0], front[1]),
                    $low16(back[0], back[1]),
                    $high16(back[0], back[1]),
                ]
            }

            /// Rows of blocks become columns of words, and these rows again: in each 128 bits on
            /// their own.
            #[inline]
            #[target_feature(enable = $features)]
            fn turn([a, b, c, d]: Four) -> Four {
                let (ab, cd) = ([$low32(a, b), $high32(a, b)], [$low32(c, d), $high32(c, d)]);
                [$low64(ab[0], cd[0]), $high64(ab[0], cd[0]), $low64(ab[1], cd[1]), $high64(ab[1], cd[1])]
            }

            /// The first words of all blocks, the second ones, ..
            ///
            /// # Safety
            /// 16 vectors can be read.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn load(at: *const u8, keys: &[u32]) -> [Four; 4] {
                let mut x = [[$set8(0); 4]; 4];
                for n in 0..4 {
                    let mut rows = [$set8(0); 4];
                    for (nth, row) in rows.iter_mut().enumerate() {
                        // SAFETY: the caller's promise.
                        *row = unsafe { $load(at.add((4 * n + nth) * BYTES).cast()) };
                    }
                    for (word, column) in turn(rows).into_iter().enumerate() {
                        x[word][n] = $xor(column, $set32(keys[word].cast_signed()));
                    }
                }
                x
            }

            /// Undoes the last round's exchange of halves, and `load`.
            ///
            /// # Safety
            /// 16 vectors can be written.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store(at: *mut u8, x: [Four; 4], keys: &[u32]) {
                for n in 0..4 {
                    let mut columns = [$set8(0); 4];
                    for (word, column) in columns.iter_mut().enumerate() {
                        *column = $xor(x[(word + 2) % 4][n], $set32(keys[word].cast_signed()));
                    }
                    for (nth, row) in turn(columns).into_iter().enumerate() {
                        // SAFETY: the caller's promise.
                        unsafe { $store(at.add((4 * n + nth) * BYTES).cast(), row) }
                    }
                }
            }
        }
    };
}

width!(
    narrow: __m256i, "avx2",
    _mm256_loadu_si256 _mm256_storeu_si256 _mm256_broadcastsi128_si256 _mm256_set1_epi8 _mm256_set1_epi32 _mm256_xor_si256
    _mm256_or_si256 _mm256_and_si256 _mm256_add_epi32 _mm256_subs_epi8,
    _mm256_shuffle_epi8 _mm256_srli_epi16 _mm256_srli_epi32 _mm256_slli_epi32,
    _mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi16 _mm256_unpackhi_epi16 _mm256_unpacklo_epi32
    _mm256_unpackhi_epi32 _mm256_unpacklo_epi64 _mm256_unpackhi_epi64
);
width!(
    wide: __m512i, "avx512f,avx512bw",
    _mm512_loadu_si512 _mm512_storeu_si512 _mm512_broadcast_i32x4 _mm512_set1_epi8 _mm512_set1_epi32 _mm512_xor_si512
    _mm512_or_si512 _mm512_and_si512 _mm512_add_epi32 _mm512_subs_epi8,
    _mm512_shuffle_epi8 _mm512_srli_epi16 _mm512_srli_epi32 _mm512_slli_epi32,
    _mm512_unpacklo_epi8 _mm512_unpackhi_epi8 _mm512_unpacklo_epi16 _mm512_unpackhi_epi16 _mm512_unpacklo_epi32
    _mm512_unpackhi_epi32 _mm512_unpacklo_epi64 _mm512_unpackhi_epi64
);
