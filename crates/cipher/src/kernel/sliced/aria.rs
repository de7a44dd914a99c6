//! ARIA (Kwon and others, "New Block Cipher: ARIA", 2003; RFC 5794).
//!
//! Half of its S-boxes are the AES's and its inverse. A substitution leaves the bytes in one order
//! in registers of AES encryption, and in another in those of decryption; one half is permuted to
//! the order of the other, and after two substitutions all bytes are in order again.

use super::affine::{AES, AES_PLUS, Map, SAME, SBox, entry};
use super::vectors::{ByteVector, SHIFTED_TWICE, load, sixteen, store, turn};
use super::{SlicedCipher, everywhere};

/// 128 bits of key, each byte everywhere in a word.
type Subkey = [u32; 16];
type Subkeys = [Subkey; MOST];
const MOST: usize = 17;

const S1: SBox = SBox { before: SAME, between: 0, after: AES, plus: AES_PLUS };
const S2: SBox =
    SBox { before: SAME, between: 0, after: [0xac, 0xfd, 0xc6, 0x83, 0x26, 0xa7, 0xfb, 0x5f], plus: 0xe2 };

/// S1, S2 and their inverses.
static TABLES: [[u8; 256]; 4] = [S1.table(), S2.table(), S1.reverse().table(), S2.reverse().table()];
/// The map that makes S2 of S1.
static BEHIND_S1: Map = S2.around_encryption().behind;
/// The map that makes the inverse of S2 of that of S1.
static BEFORE_INVERSE: Map = S2.reverse().around_decryption().before;

/// CK1 to CK3, in the order of keys of 16 bytes (RFC 5794, 2.2).
const CONSTANTS: [u128; 3] = [
    0x517c_c1b7_2722_0a94_fe13_abe8_fa9a_6ee0,
    0x6db1_4acc_9e21_c820_ff28_b1d5_ef5d_e2b0,
    0xdb92_371d_2126_e970_0324_9775_04e8_c90e,
];

/// Round keys of ARIA.
pub(crate) struct Aria {
    encrypt: Subkeys,
    decrypt: Subkeys,
    /// The number of rounds plus one.
    used: usize,
}

impl SlicedCipher for Aria {
    const EMPTY: Self = Self { encrypt: [[0; 16]; MOST], decrypt: [[0; 16]; MOST], used: 0 };

    fn expand(&mut self, key: &[u8]) {
        self.used = expand(key, &mut self.encrypt);
        let last = self.used - 1;
        for nth in 0..=last {
            let key = self.encrypt[last - nth];
            self.decrypt[nth] = if nth == 0 || nth == last { key } else { spread(key, |a, b| a ^ b) };
        }
    }

    #[inline(always)]
    unsafe fn blocks<V: ByteVector, const ENCRYPT: bool>(&self, at: *mut u8) {
        let keys = if ENCRYPT { &self.encrypt } else { &self.decrypt };
        // SAFETY: the caller's promise.
        unsafe {
            let mut x = turn(load::<V>(at));
            let mut rounds = keys[..self.used].as_chunks::<2>().0.iter();
            while let Some([odd, even]) = rounds.next() {
                x = spread(substituted::<V, false>(sum(x, odd)), |a, b| a.xor(b));
                x = substituted::<V, true>(sum(x, even));
                if rounds.len() > 0 {
                    x = spread(x, |a, b| a.xor(b));
                }
            }
            store(turn(sum(x, &keys[self.used - 1])), at);
        }
    }
}

/// The substitution layer of odd rounds, or of even ones.
#[inline(always)]
unsafe fn substituted<V: ByteVector, const EVEN: bool>(
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]: [V; 16],
) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] = word::<V, EVEN>([a, b, c, d]);
        let [e, f, g, h] = word::<V, EVEN>([e, f, g, h]);
        let [i, j, k, l] = word::<V, EVEN>([i, j, k, l]);
        let [m, n, o, p] = word::<V, EVEN>([m, n, o, p]);
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

#[inline(always)]
unsafe fn word<V: ByteVector, const EVEN: bool>([a, b, c, d]: [V; 4]) -> [V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let order = V::repeat(&SHIFTED_TWICE);
        if EVEN {
            let (a, b) = (a.restore(), b.map(&BEFORE_INVERSE).restore());
            [a, b, c.substitute().permute(order), d.substitute().permute(order).map(&BEHIND_S1)]
        } else {
            let (c, d) = (c.restore().permute(order), d.map(&BEFORE_INVERSE).restore().permute(order));
            [a.substitute(), b.substitute().map(&BEHIND_S1), c, d]
        }
    }
}

/// A, with a sum of two bytes.
#[inline(always)]
fn spread<T: Copy>(x: [T; 16], sum: impl Fn(T, T) -> T) -> [T; 16] {
    let four = |a, b, c, d| sum(sum(a, b), sum(c, d));
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
    let (eg, fh, ij, kl, mp, no) = (sum(e, g), sum(f, h), sum(i, j), sum(k, l), sum(m, p), sum(n, o));
    let (ac, bd, il, jk, mn, op) = (sum(a, c), sum(b, d), sum(i, l), sum(j, k), sum(m, n), sum(o, p));
    let (ab, cd, eh, fg, np, mo) = (sum(a, b), sum(c, d), sum(e, h), sum(f, g), sum(n, p), sum(m, o));
    let (ad, bc, ef, gh, ik, jl) = (sum(a, d), sum(b, c), sum(e, f), sum(g, h), sum(i, k), sum(j, l));
    [
        four(d, eg, ij, no),
        four(c, fh, ij, mp),
        four(b, eg, kl, mp),
        four(a, fh, kl, no),
        four(f, ac, il, op),
        four(e, bd, jk, op),
        four(h, ac, jk, mn),
        four(g, bd, il, mn),
        four(k, ab, eh, np),
        four(l, ab, fg, mo),
        four(i, cd, fg, np),
        four(j, cd, eh, mo),
        four(m, bc, gh, jl),
        four(n, ad, gh, ik),
        four(o, ad, ef, jl),
        four(p, bc, ef, ik),
    ]
}

#[inline(always)]
unsafe fn sum<V: ByteVector>(x: [V; 16], key: &Subkey) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe { sixteen!(N => x[N].xor(V::every(key[N]))) }
}

/// Makes the encryption's subkeys (2.2); says how many.
fn expand(key: &[u8], subkeys: &mut Subkeys) -> usize {
    let whole = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte));
    let (left, right) = key.split_at(16);
    let (kl, kr) = (whole(left), if right.is_empty() { 0 } else { whole(right) << (128 - 8 * right.len()) });
    let constant = |nth: usize| CONSTANTS[(nth + right.len() / 8) % 3];
    let w0 = kl;
    let w1 = round_alone(w0 ^ constant(0), [0, 1, 2, 3]) ^ kr;
    let w2 = round_alone(w1 ^ constant(1), [2, 3, 0, 1]) ^ w0;
    let w3 = round_alone(w2 ^ constant(2), [0, 1, 2, 3]) ^ w1;
    let w = [w0, w1, w2, w3];
    let used = 13 + right.len() / 4;
    for (nth, subkey) in subkeys[..used].iter_mut().enumerate() {
        let by = [19, 31, 128 - 61, 128 - 31, 128 - 19][nth / 4];
        let bytes = (w[nth % 4] ^ w[(nth + 1) % 4].rotate_right(by)).to_be_bytes();
        *subkey = bytes.map(everywhere);
    }
    used
}

/// Substitution and A of one block, with the S-boxes in this order.
fn round_alone(x: u128, order: [usize; 4]) -> u128 {
    let mut bytes = x.to_be_bytes();
    for (byte, number) in bytes.iter_mut().zip(order.iter().cycle()) {
        *byte = entry(&TABLES[*number], *byte);
    }
    u128::from_be_bytes(spread(bytes, |a, b| a ^ b))
}
