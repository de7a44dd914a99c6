//! SM4 (GB/T 32907-2016; draft-ribose-cfrg-sm4).
//!
//! A register has a word of several blocks, four registers to a word. The permutes that the linear
//! map needs put the order right that the AES instruction leaves.

use super::SlicedCipher;
use super::affine::{AffineLayers, SBox, entry};
use super::vectors::{ByteVector, load, sixteen, store};

/// The cipher's own S-box.
const S: SBox = SBox {
    before: [0x01, 0x20, 0x0f, 0xea, 0x61, 0x34, 0x86, 0xf9],
    between: 0xdd,
    after: [0x4c, 0x6f, 0x1b, 0x91, 0xc4, 0xbb, 0xaa, 0x41],
    plus: 0xd3,
};

static TABLE: [u8; 256] = S.table();
static AROUND: AffineLayers = S.around_encryption();

/// Rows of the AES shifted back, and words rotated to the left by as many bytes.
static ROTATED: [[u8; 16]; 4] = [rotated(0), rotated(1), rotated(2), rotated(3)];
/// Bytes of words reversed.
static REVERSED: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];

const fn rotated(by: u8) -> [u8; 16] {
    let mut order = [0; 16];
    let mut place = 0u8;
    while place < 16 {
        let from = place & 12 | place.wrapping_sub(by) & 3;
        order[place as usize] = from.wrapping_mul(13) & 15;
        place += 1;
    }
    order
}

/// FK of the standard.
const FAMILY: [u32; 4] = [0xa3b1_bac6, 0x56aa_3350, 0x677d_9197, 0xb270_22dc];

/// Round keys of SM4.
pub(crate) struct Sm4 {
    encrypt: [[u32; 4]; 8],
    decrypt: [[u32; 4]; 8],
}

/// A word of each block.
type Words<V> = [V; 4];

impl SlicedCipher for Sm4 {
    const EMPTY: Self = Self { encrypt: [[0; 4]; 8], decrypt: [[0; 4]; 8] };

    fn expand(&mut self, key: &[u8]) {
        let mut k = FAMILY;
        for (k, bytes) in k.iter_mut().zip(key.as_chunks().0) {
            *k ^= u32::from_be_bytes(*bytes);
        }
        for (word, nth) in self.encrypt.as_flattened_mut().iter_mut().zip(0u8..) {
            let constant = [0, 1, 2, 3].map(|place| (4 * nth + place).wrapping_mul(7));
            let x = (k[1] ^ k[2] ^ k[3] ^ u32::from_be_bytes(constant)).to_be_bytes();
            let x = u32::from_be_bytes(x.map(|byte| entry(&TABLE, byte)));
            *word = k[0] ^ x ^ x.rotate_left(13) ^ x.rotate_left(23);
            k = [k[1], k[2], k[3], *word];
        }
        let backwards = self.encrypt.as_flattened().iter().rev();
        self.decrypt.as_flattened_mut().iter_mut().zip(backwards).for_each(|(to, word)| *to = *word);
    }

    #[inline(always)]
    unsafe fn blocks<V: ByteVector, const ENCRYPT: bool>(&self, at: *mut u8) {
        let keys = if ENCRYPT { &self.encrypt } else { &self.decrypt };
        // SAFETY: the caller's promise.
        unsafe {
            let x = reversed(load::<V>(at));
            let (a, b) = (turned([x[0], x[1], x[2], x[3]]), turned([x[4], x[5], x[6], x[7]]));
            let (c, d) = (turned([x[8], x[9], x[10], x[11]]), turned([x[12], x[13], x[14], x[15]]));
            let mut w = [a[0], b[0], c[0], d[0]];
            let mut x = [a[1], b[1], c[1], d[1]];
            let mut y = [a[2], b[2], c[2], d[2]];
            let mut z = [a[3], b[3], c[3], d[3]];
            for key in keys {
                w = round(w, x, y, z, key[0]);
                x = round(x, y, z, w, key[1]);
                y = round(y, z, w, x, key[2]);
                z = round(z, w, x, y, key[3]);
            }
            let (a, b) = (turned([z[0], y[0], x[0], w[0]]), turned([z[1], y[1], x[1], w[1]]));
            let (c, d) = (turned([z[2], y[2], x[2], w[2]]), turned([z[3], y[3], x[3], w[3]]));
            let x = [a, b, c, d];
            store(reversed(sixteen!(N => x[N / 4][N % 4])), at);
        }
    }
}

/// a ^ T(b ^ c ^ d ^ key).
#[inline(always)]
unsafe fn round<V: ByteVector>(a: Words<V>, b: Words<V>, c: Words<V>, d: Words<V>, key: u32) -> Words<V> {
    // SAFETY: the caller's promise.
    unsafe {
        let key = V::every(key);
        [
            a[0].xor(mixed(b[0].xor(c[0]).xor(d[0]).xor(key))),
            a[1].xor(mixed(b[1].xor(c[1]).xor(d[1]).xor(key))),
            a[2].xor(mixed(b[2].xor(c[2]).xor(d[2]).xor(key))),
            a[3].xor(mixed(b[3].xor(c[3]).xor(d[3]).xor(key))),
        ]
    }
}

/// T: the S-box, then x ^ x <<< 2 ^ x <<< 10 ^ x <<< 18 ^ x <<< 24.
#[inline(always)]
unsafe fn mixed<V: ByteVector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let x = x.map(&AROUND.before).substitute().map(&AROUND.behind);
        let by = |bytes: usize| V::repeat(&ROTATED[bytes]);
        let (x, x8, x16, x24) = (x.permute(by(0)), x.permute(by(1)), x.permute(by(2)), x.permute(by(3)));
        let y = x.xor(x8).xor(x16);
        x.xor(x24).xor(y.left::<2>().or(y.right::<30>()))
    }
}

/// Rows of blocks become columns of words, and these rows again.
#[inline(always)]
unsafe fn turned<V: ByteVector>([a, b, c, d]: [V; 4]) -> [V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b, c, d) = (a.low_words(c), a.high_words(c), b.low_words(d), b.high_words(d));
        [a.low_words(c), a.high_words(c), b.low_words(d), b.high_words(d)]
    }
}

#[inline(always)]
unsafe fn reversed<V: ByteVector>(x: [V; 16]) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe { sixteen!(N => x[N].permute(V::repeat(&REVERSED))) }
}
