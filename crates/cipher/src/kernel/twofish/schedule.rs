//! The expansion of a key (4.3): subkeys, and tables of g.

use super::{Subkeys, Tables};

/// The nibbles' permutations that q0 and q1 are made of (4.3.5).
const NIBBLES: [[[u8; 16]; 4]; 2] = [
    [
        [0x8, 0x1, 0x7, 0xd, 0x6, 0xf, 0x3, 0x2, 0x0, 0xb, 0x5, 0x9, 0xe, 0xc, 0xa, 0x4],
        [0xe, 0xc, 0xb, 0x8, 0x1, 0x2, 0x3, 0x5, 0xf, 0x4, 0xa, 0x6, 0x7, 0x0, 0x9, 0xd],
        [0xb, 0xa, 0x5, 0xe, 0x6, 0xd, 0x9, 0x0, 0xc, 0x8, 0xf, 0x3, 0x2, 0x4, 0x7, 0x1],
        [0xd, 0x7, 0xf, 0x4, 0x1, 0x2, 0x6, 0xe, 0x9, 0xb, 0x3, 0x0, 0x8, 0x5, 0xc, 0xa],
    ],
    [
        [0x2, 0x8, 0xb, 0xd, 0xf, 0x7, 0x6, 0xe, 0x3, 0x1, 0x9, 0x4, 0x0, 0xa, 0xc, 0x5],
        [0x1, 0xe, 0x2, 0xb, 0x4, 0xc, 0x3, 0x7, 0x6, 0xd, 0xa, 0x5, 0xf, 0x9, 0x0, 0x8],
        [0x4, 0xc, 0x7, 0x5, 0x1, 0x6, 0x9, 0xa, 0x0, 0xe, 0xd, 0x8, 0x2, 0xb, 0x3, 0xf],
        [0xb, 0x9, 0x5, 0x1, 0xc, 0x3, 0xd, 0xe, 0x6, 0x4, 0x7, 0xf, 0x2, 0x0, 0x8, 0xa],
    ],
];

/// Which q each byte of a word goes through, in order; a key of 32 bytes begins at the first, of 24
/// at the second, of 16 at the third (figure 2).
const ORDER: [[usize; 5]; 4] = [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 1, 0]];

/// The matrix that ends g, by columns (4.2), over x^8 + x^6 + x^5 + x^3 + 1.
const MDS: [[u8; 4]; 4] =
    [[0x01, 0x5b, 0xef, 0xef], [0xef, 0xef, 0x5b, 0x01], [0x5b, 0xef, 0x01, 0xef], [0x5b, 0x01, 0xef, 0x5b]];
pub(super) const MDS_POLYNOMIAL: u8 = 0x69;

/// The matrix that makes the S-boxes' words of the key (4.3), over x^8 + x^6 + x^3 + x^2 + 1.
const RS: [[u8; 8]; 4] = [
    [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
    [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
    [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
    [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
];
const RS_POLYNOMIAL: u8 = 0x4d;

static Q: [[u8; 256]; 2] = [permutation(&NIBBLES[0]), permutation(&NIBBLES[1])];

/// Each byte's part of the product with `MDS`, by its place in the word.
static PRODUCTS: [[u32; 256]; 4] = products();

const fn permutation(t: &[[u8; 16]; 4]) -> [u8; 256] {
    let mut q = [0; 256];
    let mut x = 0u8;
    loop {
        let (mut a, mut b) = (x >> 4, x & 15);
        let mut step = 0;
        while step < 4 {
            let mixed = (a ^ (b >> 1) ^ (b << 3) ^ (a << 3)) & 15;
            (a, b) = (t[step][(a ^ b) as usize], t[step + 1][mixed as usize]);
            step += 2;
        }
        q[x as usize] = (b << 4) | a;
        if x == u8::MAX {
            return q;
        }
        x += 1;
    }
}

/// a * b.
pub(super) const fn product(mut a: u8, mut b: u8, polynomial: u8) -> u8 {
    let mut sum = 0;
    while a != 0 {
        sum ^= b & (a & 1).wrapping_neg();
        b = (b << 1) ^ (polynomial & (b >> 7).wrapping_neg());
        a >>= 1;
    }
    sum
}

const fn products() -> [[u32; 256]; 4] {
    let mut all = [[0; 256]; 4];
    let mut place = 0;
    while place < 4 {
        let mut x = 0u8;
        loop {
            let mut column = [0; 4];
            let mut row = 0;
            while row < 4 {
                column[row] = product(MDS[place][row], x, MDS_POLYNOMIAL);
                row += 1;
            }
            all[place][x as usize] = u32::from_le_bytes(column);
            if x == u8::MAX {
                break;
            }
            x += 1;
        }
        place += 1;
    }
    all
}

/// The part of h that the byte `x` at a place of the word has, with words of the key of which
/// `word` gives the bytes at that place.
#[inline(always)]
fn h(place: usize, x: u8, words: usize, word: impl Fn(usize) -> u8) -> u32 {
    let mut order = ORDER[place][4 - words..].iter().map(|&q| &Q[q]);
    let mut y = order.next().map_or(0, |q| q[usize::from(x)]);
    for (q, nth) in order.zip((0..words).rev()) {
        y = q[usize::from(y ^ word(nth))];
    }
    PRODUCTS[place][usize::from(y)]
}

/// Makes tables and subkeys of a key of 16, 24 or 32 bytes.
pub(super) fn expand(key: &[u8], tables: &mut Tables, subkeys: &mut Subkeys) {
    let words = key.len() / 8;
    for (pair, even) in subkeys.as_chunks_mut::<2>().0.iter_mut().zip((0..).step_by(2)) {
        let half = |x: u8, at: usize| {
            (0..4).fold(0, |sum, place| sum ^ h(place, x, words, |nth| key[8 * nth + at + place]))
        };
        let (a, b) = (half(even, 0), half(even + 1, 4).rotate_left(8));
        *pair = [a.wrapping_add(b), a.wrapping_add(b).wrapping_add(b).rotate_left(9)];
    }
    // The last word of the key comes first.
    let word = |nth: usize, place: usize| {
        let bytes = &key[8 * (words - 1 - nth)..];
        bytes.iter().zip(RS[place]).fold(0, |sum, (byte, factor)| sum ^ product(factor, *byte, RS_POLYNOMIAL))
    };
    for (place, table) in tables.iter_mut().enumerate() {
        let mut bytes = [0; 4];
        bytes[..words].iter_mut().enumerate().for_each(|(nth, byte)| *byte = word(nth, place));
        for (entry, x) in table.iter_mut().zip(0..=u8::MAX) {
            *entry = h(place, x, words, |nth| bytes[nth]);
        }
    }
}
