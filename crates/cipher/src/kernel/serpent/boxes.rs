//! The S-boxes as sequences of logic over whole words, each bit of which is a separate box: those
//! that Osvik found for five registers ("Speeding up Serpent", 3rd AES Candidate Conference, 2000).
//! Their time is constant, since no instruction depends on the bits.

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// The operations of the boxes.
pub(super) trait Bits:
    Copy + BitXor<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
}

impl Bits for u32 {}

/// S-box `N`.
#[inline(always)]
pub(super) fn substitute<W: Bits, const N: usize>(x: [W; 4]) -> [W; 4] {
    const { assert!(N < 8) };
    match N {
        0 => s0(x),
        1 => s1(x),
        2 => s2(x),
        3 => s3(x),
        4 => s4(x),
        5 => s5(x),
        6 => s6(x),
        _ => s7(x),
    }
}

/// The inverse of S-box `N`.
#[inline(always)]
pub(super) fn restore<W: Bits, const N: usize>(x: [W; 4]) -> [W; 4] {
    const { assert!(N < 8) };
    match N {
        0 => i0(x),
        1 => i1(x),
        2 => i2(x),
        3 => i3(x),
        4 => i4(x),
        5 => i5(x),
        6 => i6(x),
        _ => i7(x),
    }
}

#[inline(always)]
fn s0<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let d = d ^ a;
    let e = b;
    let b = b & d;
    let e = e ^ c;
    let b = b ^ a;
    let a = a | d;
    let a = a ^ e;
    let e = e ^ d;
    let d = d ^ c;
    let c = c | b;
    let c = c ^ e;
    let e = !e;
    let e = e | b;
    let b = b ^ d;
    let b = b ^ e;
    let d = d | a;
    let b = b ^ d;
    let e = e ^ d;
    [b, e, c, a]
}

#[inline(always)]
fn s1<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let a = !a;
    let c = !c;
    let e = a;
    let a = a & b;
    let c = c ^ a;
    let a = a | d;
    let d = d ^ c;
    let b = b ^ a;
    let a = a ^ e;
    let e = e | b;
    let b = b ^ d;
    let c = c | a;
    let c = c & e;
    let a = a ^ b;
    let b = b & c;
    let b = b ^ a;
    let a = a & c;
    let e = e ^ a;
    [c, e, d, b]
}

#[inline(always)]
fn s2<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = a;
    let a = a & c;
    let a = a ^ d;
    let c = c ^ b;
    let c = c ^ a;
    let d = d | e;
    let d = d ^ b;
    let e = e ^ c;
    let b = d;
    let d = d | e;
    let d = d ^ a;
    let a = a & b;
    let e = e ^ a;
    let b = b ^ d;
    let b = b ^ e;
    let e = !e;
    [c, d, b, e]
}

#[inline(always)]
fn s3<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = a;
    let a = a | d;
    let d = d ^ b;
    let b = b & e;
    let e = e ^ c;
    let c = c ^ d;
    let d = d & a;
    let e = e | b;
    let d = d ^ e;
    let a = a ^ b;
    let e = e & a;
    let b = b ^ d;
    let e = e ^ c;
    let b = b | a;
    let b = b ^ c;
    let a = a ^ d;
    let c = b;
    let b = b | d;
    let a = a ^ b;
    [a, c, d, e]
}

#[inline(always)]
fn s4<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let b = b ^ d;
    let d = !d;
    let c = c ^ d;
    let d = d ^ a;
    let e = b;
    let b = b & d;
    let b = b ^ c;
    let e = e ^ d;
    let a = a ^ e;
    let c = c & e;
    let c = c ^ a;
    let a = a & b;
    let d = d ^ a;
    let e = e | b;
    let e = e ^ a;
    let a = a | d;
    let a = a ^ c;
    let c = c & d;
    let a = !a;
    let e = e ^ c;
    [b, e, a, d]
}

#[inline(always)]
fn s5<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let a = a ^ b;
    let b = b ^ d;
    let d = !d;
    let e = b;
    let b = b & a;
    let c = c ^ d;
    let b = b ^ c;
    let c = c | e;
    let e = e ^ d;
    let d = d & b;
    let d = d ^ a;
    let e = e ^ b;
    let e = e ^ c;
    let c = c ^ a;
    let a = a & d;
    let c = !c;
    let a = a ^ e;
    let e = e | d;
    let e = e ^ c;
    let c = a;
    let a = b;
    let b = d;
    let d = e;
    [a, b, c, d]
}

#[inline(always)]
fn s6<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let c = !c;
    let e = d;
    let d = d & a;
    let a = a ^ e;
    let d = d ^ c;
    let c = c | e;
    let b = b ^ d;
    let c = c ^ a;
    let a = a | b;
    let c = c ^ b;
    let e = e ^ a;
    let a = a | d;
    let a = a ^ c;
    let e = e ^ d;
    let e = e ^ a;
    let d = !d;
    let c = c & e;
    let d = d ^ c;
    let c = e;
    [a, b, c, d]
}

#[inline(always)]
fn s7<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = b;
    let b = b | c;
    let b = b ^ d;
    let e = e ^ c;
    let c = c ^ b;
    let d = d | e;
    let d = d & a;
    let e = e ^ c;
    let d = d ^ b;
    let b = b | e;
    let b = b ^ a;
    let a = a | e;
    let a = a ^ c;
    let b = b ^ e;
    let c = c ^ b;
    let b = b & a;
    let b = b ^ e;
    let c = !c;
    let c = c | a;
    let e = e ^ c;
    [e, d, b, a]
}

#[inline(always)]
fn i0<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let c = !c;
    let e = b;
    let b = b | a;
    let e = !e;
    let b = b ^ c;
    let c = c | e;
    let b = b ^ d;
    let a = a ^ e;
    let c = c ^ a;
    let a = a & d;
    let e = e ^ a;
    let a = a | b;
    let a = a ^ c;
    let d = d ^ e;
    let c = c ^ b;
    let d = d ^ a;
    let d = d ^ b;
    let c = c & d;
    let e = e ^ c;
    [a, e, b, d]
}

#[inline(always)]
fn i1<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = b;
    let b = b ^ d;
    let d = d & b;
    let e = e ^ c;
    let d = d ^ a;
    let a = a | b;
    let c = c ^ d;
    let a = a ^ e;
    let a = a | c;
    let b = b ^ d;
    let a = a ^ b;
    let b = b | d;
    let b = b ^ a;
    let e = !e;
    let e = e ^ b;
    let b = b | a;
    let b = b ^ a;
    let b = b | e;
    let d = d ^ b;
    [e, a, d, c]
}

#[inline(always)]
fn i2<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let c = c ^ d;
    let d = d ^ a;
    let e = d;
    let d = d & c;
    let d = d ^ b;
    let b = b | c;
    let b = b ^ e;
    let e = e & d;
    let c = c ^ d;
    let e = e & a;
    let e = e ^ c;
    let c = c & b;
    let c = c | a;
    let d = !d;
    let c = c ^ d;
    let a = a ^ d;
    let a = a & b;
    let d = d ^ e;
    let d = d ^ a;
    [b, e, c, d]
}

#[inline(always)]
fn i3<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = c;
    let c = c ^ b;
    let a = a ^ c;
    let e = e & c;
    let e = e ^ a;
    let a = a & b;
    let b = b ^ d;
    let d = d | e;
    let c = c ^ d;
    let a = a ^ d;
    let b = b ^ e;
    let d = d & c;
    let d = d ^ b;
    let b = b ^ a;
    let b = b | c;
    let a = a ^ d;
    let b = b ^ e;
    let a = a ^ b;
    [c, b, d, a]
}

#[inline(always)]
fn i4<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = c;
    let c = c & d;
    let c = c ^ b;
    let b = b | d;
    let b = b & a;
    let e = e ^ c;
    let e = e ^ b;
    let b = b & c;
    let a = !a;
    let d = d ^ e;
    let b = b ^ d;
    let d = d & a;
    let d = d ^ c;
    let a = a ^ b;
    let c = c & a;
    let d = d ^ a;
    let c = c ^ e;
    let c = c | d;
    let d = d ^ a;
    let c = c ^ b;
    [a, d, c, e]
}

#[inline(always)]
fn i5<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let b = !b;
    let e = d;
    let c = c ^ b;
    let d = d | a;
    let d = d ^ c;
    let c = c | b;
    let c = c & a;
    let e = e ^ d;
    let c = c ^ e;
    let e = e | a;
    let e = e ^ b;
    let b = b & c;
    let b = b ^ d;
    let e = e ^ c;
    let d = d & e;
    let e = e ^ b;
    let d = d ^ e;
    let e = !e;
    let d = d ^ a;
    [b, e, d, c]
}

#[inline(always)]
fn i6<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let a = a ^ c;
    let e = c;
    let c = c & a;
    let e = e ^ d;
    let c = !c;
    let d = d ^ b;
    let c = c ^ d;
    let e = e | a;
    let a = a ^ c;
    let d = d ^ e;
    let e = e ^ b;
    let b = b & d;
    let b = b ^ a;
    let a = a ^ d;
    let a = a | c;
    let d = d ^ b;
    let e = e ^ a;
    [b, c, e, d]
}

#[inline(always)]
fn i7<W: Bits>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let e = c;
    let c = c ^ a;
    let a = a & d;
    let e = e | d;
    let c = !c;
    let d = d ^ b;
    let b = b | a;
    let a = a ^ c;
    let c = c & e;
    let d = d & e;
    let b = b ^ c;
    let c = c ^ a;
    let a = a | c;
    let e = e ^ b;
    let a = a ^ d;
    let d = d ^ e;
    let e = e | a;
    let d = d ^ c;
    let e = e ^ c;
    [d, a, b, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the cipher's proposal.
    const TABLES: [[u32; 16]; 8] = [
        [3, 8, 15, 1, 10, 6, 5, 11, 14, 13, 4, 2, 7, 0, 9, 12],
        [15, 12, 2, 7, 9, 0, 5, 10, 1, 11, 14, 8, 6, 13, 3, 4],
        [8, 6, 7, 9, 3, 12, 10, 15, 13, 1, 14, 4, 0, 11, 5, 2],
        [0, 15, 11, 8, 12, 9, 6, 3, 13, 1, 2, 4, 10, 7, 5, 14],
        [1, 15, 8, 3, 12, 0, 11, 6, 2, 5, 4, 10, 9, 14, 7, 13],
        [15, 5, 2, 11, 4, 10, 9, 12, 0, 3, 14, 8, 13, 6, 7, 1],
        [7, 2, 12, 5, 8, 4, 6, 11, 14, 9, 1, 15, 13, 3, 10, 0],
        [1, 13, 15, 0, 14, 8, 2, 11, 7, 4, 12, 10, 9, 3, 5, 6],
    ];

    /// Sixteen values at once: bit k of each in word k.
    fn sliced(values: [u32; 16]) -> [u32; 4] {
        std::array::from_fn(|k| (0..16).fold(0, |word, nth| word | (((values[nth] >> k) & 1) << nth)))
    }

    fn check<const N: usize>() {
        let every = sliced(std::array::from_fn(|nth| u32::try_from(nth).unwrap()));
        let table = sliced(TABLES[N]);
        assert_eq!(substitute::<u32, N>(every).map(|word| word & 0xffff), table, "S{N}");
        assert_eq!(restore::<u32, N>(table).map(|word| word & 0xffff), every, "the inverse of S{N}");
    }

    #[test]
    fn the_sequences_are_the_tables() {
        check::<0>();
        check::<1>();
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<7>();
    }
}
