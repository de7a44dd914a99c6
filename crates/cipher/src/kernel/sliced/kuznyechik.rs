//! Kuznyechik (GOST R 34.12-2015; RFC 7801), for registers that look tables of 256 bytes up by
//! themselves.
//!
//! A register has one byte of each of 64 blocks. The linear layer is sixteen steps of a shift
//! register: each replaces one register by a sum of multiples of all, so nothing is shifted but
//! names. Both constants of a pair are one map of a sum.

use super::affine::{Linear, Map, entry};
use super::vectors::{ByteVector, load, sixteen, store, turn};
use super::{SlicedCipher, everywhere};

/// pi of the standard.
static PI: [u8; 256] = [
    0xfc, 0xee, 0xdd, 0x11, 0xcf, 0x6e, 0x31, 0x16, 0xfb, 0xc4, 0xfa, 0xda, 0x23, 0xc5, 0x04, 0x4d, 0xe9,
    0x77, 0xf0, 0xdb, 0x93, 0x2e, 0x99, 0xba, 0x17, 0x36, 0xf1, 0xbb, 0x14, 0xcd, 0x5f, 0xc1, 0xf9, 0x18,
    0x65, 0x5a, 0xe2, 0x5c, 0xef, 0x21, 0x81, 0x1c, 0x3c, 0x42, 0x8b, 0x01, 0x8e, 0x4f, 0x05, 0x84, 0x02,
    0xae, 0xe3, 0x6a, 0x8f, 0xa0, 0x06, 0x0b, 0xed, 0x98, 0x7f, 0xd4, 0xd3, 0x1f, 0xeb, 0x34, 0x2c, 0x51,
    0xea, 0xc8, 0x48, 0xab, 0xf2, 0x2a, 0x68, 0xa2, 0xfd, 0x3a, 0xce, 0xcc, 0xb5, 0x70, 0x0e, 0x56, 0x08,
    0x0c, 0x76, 0x12, 0xbf, 0x72, 0x13, 0x47, 0x9c, 0xb7, 0x5d, 0x87, 0x15, 0xa1, 0x96, 0x29, 0x10, 0x7b,
    0x9a, 0xc7, 0xf3, 0x91, 0x78, 0x6f, 0x9d, 0x9e, 0xb2, 0xb1, 0x32, 0x75, 0x19, 0x3d, 0xff, 0x35, 0x8a,
    0x7e, 0x6d, 0x54, 0xc6, 0x80, 0xc3, 0xbd, 0x0d, 0x57, 0xdf, 0xf5, 0x24, 0xa9, 0x3e, 0xa8, 0x43, 0xc9,
    0xd7, 0x79, 0xd6, 0xf6, 0x7c, 0x22, 0xb9, 0x03, 0xe0, 0x0f, 0xec, 0xde, 0x7a, 0x94, 0xb0, 0xbc, 0xdc,
    0xe8, 0x28, 0x50, 0x4e, 0x33, 0x0a, 0x4a, 0xa7, 0x97, 0x60, 0x73, 0x1e, 0x00, 0x62, 0x44, 0x1a, 0xb8,
    0x38, 0x82, 0x64, 0x9f, 0x26, 0x41, 0xad, 0x45, 0x46, 0x92, 0x27, 0x5e, 0x55, 0x2f, 0x8c, 0xa3, 0xa5,
    0x7d, 0x69, 0xd5, 0x95, 0x3b, 0x07, 0x58, 0xb3, 0x40, 0x86, 0xac, 0x1d, 0xf7, 0x30, 0x37, 0x6b, 0xe4,
    0x88, 0xd9, 0xe7, 0x89, 0xe1, 0x1b, 0x83, 0x49, 0x4c, 0x3f, 0xf8, 0xfe, 0x8d, 0x53, 0xaa, 0x90, 0xca,
    0xd8, 0x85, 0x61, 0x20, 0x71, 0x67, 0xa4, 0x2d, 0x2b, 0x09, 0x5b, 0xcb, 0x9b, 0x25, 0xd0, 0xbe, 0xe5,
    0x6c, 0x52, 0x59, 0xa6, 0x74, 0xd2, 0xe6, 0xf4, 0xb4, 0xc0, 0xd1, 0x66, 0xaf, 0xc2, 0x39, 0x4b, 0x63,
    0xb6,
];
static UNDONE: [u8; 256] = {
    let mut undone = [0; 256];
    let mut x = 0u8;
    loop {
        undone[PI[x as usize] as usize] = x;
        if x == u8::MAX {
            break;
        }
        x += 1;
    }
    undone
};

/// The factor of each byte of a block, the first byte first.
const FACTORS: [u8; 16] = [148, 32, 133, 16, 194, 192, 1, 251, 1, 192, 194, 16, 133, 32, 148, 1];

static BY_148: Map = Map::new(&by(148), 0);
static BY_32: Map = Map::new(&by(32), 0);
static BY_133: Map = Map::new(&by(133), 0);
static BY_16: Map = Map::new(&by(16), 0);
static BY_194: Map = Map::new(&by(194), 0);
static BY_192: Map = Map::new(&by(192), 0);
static BY_251: Map = Map::new(&by(251), 0);

/// Multiplication by `factor` modulo x^8 + x^7 + x^6 + x + 1.
const fn by(factor: u8) -> Linear {
    let mut map = [0; 8];
    let (mut bit, mut power) = (0, factor);
    while bit < 8 {
        map[bit] = power;
        power = (power << 1) ^ (0xc3 & (power >> 7).wrapping_neg());
        bit += 1;
    }
    map
}

/// Rounds with a layer of S-boxes; a key more.
const ROUNDS: usize = 9;

/// Round keys of Kuznyechik, each byte everywhere in a word.
pub(crate) struct Kuznyechik([[u32; 16]; ROUNDS + 1]);

impl SlicedCipher for Kuznyechik {
    const EMPTY: Self = Self([[0; 16]; ROUNDS + 1]);

    fn expand(&mut self, key: &[u8]) {
        let (mut a, mut b) = ([0; 16], [0; 16]);
        a.copy_from_slice(&key[..16]);
        b.copy_from_slice(&key[16..]);
        self.0[0] = a.map(everywhere);
        self.0[1] = b.map(everywhere);
        for step in 1..=32u8 {
            let mut constant = [0; 16];
            constant[15] = step;
            let constant = linear(constant);
            let mut mixed = [0; 16];
            for (to, (a, c)) in mixed.iter_mut().zip(a.iter().zip(&constant)) {
                *to = entry(&PI, a ^ c);
            }
            mixed = linear(mixed);
            mixed.iter_mut().zip(&b).for_each(|(to, b)| *to ^= b);
            (a, b) = (mixed, a);
            if step.is_multiple_of(8) {
                let at = usize::from(step / 4);
                self.0[at] = a.map(everywhere);
                self.0[at + 1] = b.map(everywhere);
            }
        }
    }

    #[inline(always)]
    unsafe fn blocks<V: ByteVector, const ENCRYPT: bool>(&self, at: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut x = turn(load::<V>(at));
            if ENCRYPT {
                for key in &self.0[..ROUNDS] {
                    x = sixteen!(N => x[N].xor(V::every(key[N])).look_up(&PI));
                    sixteen!(K => x[15 - K] = sum::<V, K>(&x));
                }
                x = sixteen!(N => x[N].xor(V::every(self.0[ROUNDS][N])));
            } else {
                x = sixteen!(N => x[N].xor(V::every(self.0[ROUNDS][N])));
                for key in self.0[..ROUNDS].iter().rev() {
                    // Each step backwards is the same sum: the factor of the last byte is 1.
                    sixteen!(K => x[K] = sum::<V, { 15 - K }>(&x));
                    x = sixteen!(N => x[N].look_up(&UNDONE).xor(V::every(key[N])));
                }
            }
            store(turn(x), at);
        }
    }
}

/// Computes the first byte at step `K` of the shift register; byte n is then in register n - K.
#[inline(always)]
unsafe fn sum<V: ByteVector, const K: usize>(x: &[V; 16]) -> V {
    let at = |nth: usize| x[(nth + 16 - K) % 16];
    // SAFETY: the caller's promise.
    unsafe {
        let pair = |a: usize, b: usize, map: &Map| at(a).xor(at(b)).map(map);
        let ones = at(6).xor(at(8)).xor(at(15));
        let first = pair(0, 14, &BY_148).xor(pair(1, 13, &BY_32)).xor(pair(2, 12, &BY_133));
        let second = pair(3, 11, &BY_16).xor(pair(4, 10, &BY_194)).xor(pair(5, 9, &BY_192));
        first.xor(second).xor(ones.xor(at(7).map(&BY_251)))
    }
}

/// The linear layer of one block.
fn linear(mut block: [u8; 16]) -> [u8; 16] {
    for _ in 0..16 {
        let first = block.iter().zip(FACTORS).fold(0, |sum, (byte, factor)| sum ^ multiply(*byte, factor));
        block.rotate_right(1);
        block[0] = first;
    }
    block
}

fn multiply(byte: u8, factor: u8) -> u8 {
    let bit = |(nth, power): (usize, u8)| power & ((byte >> nth) & 1).wrapping_neg();
    by(factor).into_iter().enumerate().map(bit).fold(0, |sum, power| sum ^ power)
}
