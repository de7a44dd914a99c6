//! Camellia (Aoki and others, "Camellia: A 128-Bit Block Cipher Suitable for Multiple Platforms",
//! 2000; RFC 3713).
//!
//! Left halves of blocks keep their order in the registers, right halves have the order that the
//! AES instructions leave; F of the left is made with AES encryption, F of the right with AES
//! decryption, so that no order is ever put right but at the ends.

use super::affine::{AffineLayers, SBox, entry};
use super::vectors::{ByteVector, SHIFTED, SHIFTED_BACK, eight, load, sixteen, store, turn};
use super::{SlicedCipher, everywhere};

/// 64 bits of key, each byte everywhere in a word.
type Subkey = [u32; 8];
/// Whitening; then six rounds and a layer of FL, over and over; then whitening again.
type Subkeys = [[Subkey; 2]; MOST];
const MOST: usize = 17;

/// S1; the others are rotations of it.
const S1: SBox = SBox {
    before: [0x01, 0x19, 0xb1, 0xab, 0xa7, 0x93, 0x61, 0xd9],
    between: 0x08,
    after: [0xf1, 0xbb, 0x8e, 0x09, 0xfa, 0xd7, 0x21, 0xe1],
    plus: 0x6e,
};
const S2: SBox = S1.rotated(0, 1);
const S3: SBox = S1.rotated(0, 7);
const S4: SBox = S1.rotated(1, 0);

static TABLES: [[u8; 256]; 4] = [S1.table(), S2.table(), S3.table(), S4.table()];
static LEFT: [AffineLayers; 4] =
    [S1.around_encryption(), S2.around_encryption(), S3.around_encryption(), S4.around_encryption()];
static RIGHT: [AffineLayers; 4] =
    [S1.around_decryption(), S2.around_decryption(), S3.around_decryption(), S4.around_decryption()];

/// The S-box of each byte.
const BOXES: [usize; 8] = [0, 1, 2, 3, 1, 2, 3, 0];

/// The constants of the key's expansion (RFC 3713, 2.2).
const SIGMA: [u64; 6] = [
    0xa09e_667f_3bcc_908b,
    0xb67a_e858_4caa_73b2,
    0xc6ef_372f_e94f_82be,
    0x54ff_53a5_f1d3_6f1c,
    0x10e5_27fa_de68_2d1d,
    0xb056_88c2_b3e6_c1fd,
];

/// Round keys of Camellia.
pub(crate) struct Camellia {
    encrypt: Subkeys,
    decrypt: Subkeys,
    used: usize,
}

impl SlicedCipher for Camellia {
    const EMPTY: Self = Self { encrypt: [[[0; 8]; 2]; MOST], decrypt: [[[0; 8]; 2]; MOST], used: 0 };

    fn expand(&mut self, key: &[u8]) {
        self.used = expand(key, &mut self.encrypt);
        let used = &self.encrypt[..self.used];
        for (to, [a, b]) in self.decrypt.iter_mut().zip(used.iter().rev()) {
            *to = [*b, *a];
        }
        // Whitening is of the left and of the right both ways.
        self.decrypt[0].swap(0, 1);
        self.decrypt[self.used - 1].swap(0, 1);
    }

    #[inline(always)]
    unsafe fn blocks<V: ByteVector, const ENCRYPT: bool>(&self, at: *mut u8) {
        let keys = if ENCRYPT { &self.encrypt } else { &self.decrypt };
        // SAFETY: the caller's promise.
        unsafe {
            let x = turn(load::<V>(at));
            let mut left = sum(eight!(N => x[N]), &keys[0][0]);
            let right = sum(eight!(N => x[N + 8]), &keys[0][1]);
            let mut right = permuted(right, &SHIFTED);
            let groups = keys[1..self.used].as_chunks::<4>().0;
            for (nth, [a, b, c, between]) in groups.iter().enumerate() {
                (left, right) = two_rounds(left, right, a);
                (left, right) = two_rounds(left, right, b);
                (left, right) = two_rounds(left, right, c);
                if nth + 1 < groups.len() {
                    left = fl(left, &between[0]);
                    right = fl_back(right, &between[1]);
                }
            }
            let last = &keys[self.used - 1];
            let right = sum(permuted(right, &SHIFTED_BACK), &last[0]);
            let left = sum(left, &last[1]);
            store(turn(sixteen!(N => [right, left][N / 8][N % 8])), at);
        }
    }
}

/// A round that changes the right half, and a round that changes the left.
#[inline(always)]
unsafe fn two_rounds<V: ByteVector>(left: [V; 8], right: [V; 8], keys: &[Subkey; 2]) -> ([V; 8], [V; 8]) {
    // SAFETY: the caller's promise.
    unsafe {
        let right = xor(right, f::<V, true>(left, &keys[0]));
        (xor(left, f::<V, false>(right, &keys[1])), right)
    }
}

/// F; the left is substituted by encryption.
#[inline(always)]
unsafe fn f<V: ByteVector, const LEFT_HALF: bool>(x: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d, e, f, g, h] = sum(x, key);
        let x = [
            s_box::<V, 0, LEFT_HALF>(a),
            s_box::<V, 1, LEFT_HALF>(b),
            s_box::<V, 2, LEFT_HALF>(c),
            s_box::<V, 3, LEFT_HALF>(d),
            s_box::<V, 1, LEFT_HALF>(e),
            s_box::<V, 2, LEFT_HALF>(f),
            s_box::<V, 3, LEFT_HALF>(g),
            s_box::<V, 0, LEFT_HALF>(h),
        ];
        spread(x, |a, b| a.xor(b))
    }
}

#[inline(always)]
unsafe fn s_box<V: ByteVector, const NUMBER: usize, const LEFT_HALF: bool>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        if LEFT_HALF {
            x.map(&LEFT[NUMBER].before).substitute().map(&LEFT[NUMBER].behind)
        } else {
            x.map(&RIGHT[NUMBER].before).restore().map(&RIGHT[NUMBER].behind)
        }
    }
}

/// P, with a sum of two bytes.
#[inline(always)]
fn spread<T: Copy>([a, b, c, d, e, f, g, h]: [T; 8], sum: impl Fn(T, T) -> T) -> [T; 8] {
    let (a, b, c, d) = (sum(a, f), sum(b, g), sum(c, h), sum(d, e));
    let (e, f, g, h) = (sum(e, c), sum(f, d), sum(g, a), sum(h, b));
    let (a, b, c, d) = (sum(a, h), sum(b, e), sum(c, f), sum(d, g));
    let (e, f, g, h) = (sum(e, d), sum(f, a), sum(g, b), sum(h, c));
    [e, f, g, h, a, b, c, d]
}

#[inline(always)]
unsafe fn fl<V: ByteVector>(x: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe { fl_first(fl_second(x, key), key) }
}

/// The reverse of `fl`.
#[inline(always)]
unsafe fn fl_back<V: ByteVector>(x: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe { fl_second(fl_first(x, key), key) }
}

/// The second word changes by the first.
#[inline(always)]
unsafe fn fl_second<V: ByteVector>([a, b, c, d, e, f, g, h]: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let key = |nth: usize| V::every(key[nth]);
        let (k, l, m, n) = (a.and(key(0)), b.and(key(1)), c.and(key(2)), d.and(key(3)));
        let (e, f) = (e.xor(k.double()).xor(l.tops()), f.xor(l.double()).xor(m.tops()));
        let (g, h) = (g.xor(m.double()).xor(n.tops()), h.xor(n.double()).xor(k.tops()));
        [a, b, c, d, e, f, g, h]
    }
}

/// The first word changes by the second.
#[inline(always)]
unsafe fn fl_first<V: ByteVector>([a, b, c, d, e, f, g, h]: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let key = |nth: usize| V::every(key[nth]);
        let (a, b) = (a.xor(e.or(key(4))), b.xor(f.or(key(5))));
        let (c, d) = (c.xor(g.or(key(6))), d.xor(h.or(key(7))));
        [a, b, c, d, e, f, g, h]
    }
}

#[inline(always)]
unsafe fn sum<V: ByteVector>(x: [V; 8], key: &Subkey) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe { eight!(N => x[N].xor(V::every(key[N]))) }
}

#[inline(always)]
unsafe fn xor<V: ByteVector>(x: [V; 8], y: [V; 8]) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe { eight!(N => x[N].xor(y[N])) }
}

#[inline(always)]
unsafe fn permuted<V: ByteVector>(x: [V; 8], order: &[u8; 16]) -> [V; 8] {
    // SAFETY: the caller's promise.
    unsafe { eight!(N => x[N].permute(V::repeat(order))) }
}

/// Makes the subkeys (2.2), two by two; says how many pairs.
fn expand(key: &[u8], subkeys: &mut Subkeys) -> usize {
    let (first, second) = key.split_at(16);
    let mut whole = [0; 16];
    whole[..second.len()].copy_from_slice(second);
    if second.len() == 8 {
        whole[8..].iter_mut().zip(second).for_each(|(to, byte)| *to = !byte);
    }
    let [kl, kr] = [first, &whole].map(|half| half.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte)));
    let ka = mixed(mixed(kl ^ kr, SIGMA[0], SIGMA[1]) ^ kl, SIGMA[2], SIGMA[3]);
    let kb = mixed(ka ^ kr, SIGMA[4], SIGMA[5]);
    let of_16 = [
        (kl, 0),
        (ka, 0),
        (kl, 15),
        (ka, 15),
        (ka, 30),
        (kl, 45),
        // The second half of this pair is of kl.
        (ka, 45),
        (ka, 60),
        (kl, 77),
        (kl, 94),
        (ka, 94),
        (kl, 111),
        (ka, 111),
    ];
    let of_more = [
        (kl, 0),
        (kb, 0),
        (kr, 15),
        (ka, 15),
        (kr, 30),
        (kb, 30),
        (kl, 45),
        (ka, 45),
        (kl, 60),
        (kr, 60),
        (kb, 60),
        (kl, 77),
        (ka, 77),
        (kr, 94),
        (ka, 94),
        (kl, 111),
        (kb, 111),
    ];
    let pairs: &[(u128, u32)] = if second.is_empty() { &of_16 } else { &of_more };
    for (nth, (to, (part, by))) in subkeys.iter_mut().zip(pairs).enumerate() {
        let mut pair = part.rotate_left(*by);
        if second.is_empty() && nth == 6 {
            pair = pair >> 64 << 64 | u128::from(low(kl.rotate_left(60)));
        }
        let bytes = pair.to_be_bytes();
        for (word, byte) in to.as_flattened_mut().iter_mut().zip(bytes) {
            *word = everywhere(byte);
        }
    }
    pairs.len()
}

/// Two rounds of F under constants.
fn mixed(x: u128, sigma: u64, next: u64) -> u128 {
    let (left, right) = (low(x >> 64), low(x));
    let right = right ^ f_alone(left ^ sigma);
    let left = left ^ f_alone(right ^ next);
    u128::from(left) << 64 | u128::from(right)
}

fn low(x: u128) -> u64 {
    let [_, _, _, _, _, _, _, _, bytes @ ..] = x.to_be_bytes();
    u64::from_be_bytes(bytes)
}

/// F of one block, the key added.
fn f_alone(x: u64) -> u64 {
    let mut bytes = x.to_be_bytes();
    for (byte, number) in bytes.iter_mut().zip(BOXES) {
        *byte = entry(&TABLES[number], *byte);
    }
    u64::from_be_bytes(spread(bytes, |a, b| a ^ b))
}
