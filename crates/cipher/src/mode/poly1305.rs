//! Poly1305 without its final addition, in words of 64 bits (Bernstein, "The Poly1305-AES
//! message-authentication code", 2005).
//!
//! Adiantum hashes a few blocks at a time with one key: a library's preparation costs more than
//! these blocks do, and NH's work hides the latency of their two multiplications.

use zeroize::Zeroize;

/// r, clamped: r0 + r1 * 2^64.
pub(crate) struct Poly1305 {
    r0: u64,
    r1: u64,
}

/// The sum so far, modulo 2^130 - 5 and a few bits above.
#[derive(Clone, Copy, Default)]
pub(crate) struct AccumulatedSum([u64; 3]);

fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// The low and the high word.
#[expect(clippy::cast_possible_truncation, reason = "that is what it does")]
fn words(x: u128) -> (u64, u64) {
    (x as u64, (x >> 64) as u64)
}

impl Poly1305 {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        let r = u128::from_le_bytes(*key) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        let (r0, r1) = words(r);
        Self { r0, r1 }
    }

    /// (sum + block + 2^128) * r.
    #[inline]
    pub(crate) fn add(
        &self,
        AccumulatedSum([h0, h1, h2]): AccumulatedSum,
        block: [u64; 2],
    ) -> AccumulatedSum {
        let &Self { r0, r1 } = self;
        // r1 * 2^128 modulo 2^130 - 5: r1 is a multiple of 4.
        let s1 = r1 + (r1 >> 2);
        let (h0, carry) = words(u128::from(h0) + u128::from(block[0]));
        let (h1, carry) = words(u128::from(h1) + u128::from(block[1]) + u128::from(carry));
        let h2 = h2 + 1 + carry;
        // r0 and r1 have 60 bits, s1 less than 61, h2 a few: nothing overflows.
        let d0 = product(h0, r0) + product(h1, s1);
        let d1 = product(h0, r1) + product(h1, r0) + u128::from(h2 * s1);
        let (h0, carry) = words(d0);
        let (h1, carry) = words(d1 + u128::from(carry));
        let h2 = h2 * r0 + carry;
        // The bits above 2^130 come back five times.
        let over = (h2 >> 2) + (h2 & !3);
        let (h0, carry) = words(u128::from(h0) + u128::from(over));
        let (h1, carry) = words(u128::from(h1) + u128::from(carry));
        AccumulatedSum([h0, h1, (h2 & 3) + carry])
    }
}

impl AccumulatedSum {
    /// The sum modulo 2^130 - 5, modulo 2^128.
    pub(crate) fn finish(self) -> u128 {
        let [h0, h1, h2] = self.0;
        let low = u128::from(h0) | u128::from(h1) << 64;
        // h - p = h + 5 - 2^130: a mask selects one of the two.
        let (less, carry) = low.overflowing_add(5);
        let over = u128::from((h2 + u64::from(carry)) >> 2).min(1).wrapping_neg();
        (less & over) | (low & !over)
    }
}

impl Drop for Poly1305 {
    fn drop(&mut self) {
        self.r0.zeroize();
        self.r1.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use poly1305::universal_hash::{KeyInit, UniversalHash};
    use proptest::prelude::*;

    use super::*;

    fn check(r: [u8; 16], blocks: &[[u64; 2]]) {
        let ours = Poly1305::new(&r);
        let sum = blocks.iter().fold(AccumulatedSum::default(), |sum, block| ours.add(sum, *block));
        let mut key = [0; 32];
        key[..16].copy_from_slice(&r);
        let mut library = poly1305::Poly1305::new(&key.into());
        for block in blocks {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&block[0].to_le_bytes());
            bytes[8..].copy_from_slice(&block[1].to_le_bytes());
            library.update(&[bytes.into()]);
        }
        assert_eq!(sum.finish().to_le_bytes(), <[u8; 16]>::from(library.finalize()));
    }

    proptest! {
        #[test]
        fn sums_are_the_librarys(r in any::<[u8; 16]>(), blocks in prop::collection::vec(any::<[u64; 2]>(), 0..300)) {
            check(r, &blocks);
        }

        /// Bits that are all ones or all zeros carry furthest.
        #[test]
        fn sums_at_the_edges_are_the_librarys(
            r in any::<bool>(),
            blocks in prop::collection::vec(prop::array::uniform2(prop::sample::select(&[0, 1, 4, 5, 6, u64::MAX - 5, u64::MAX - 4, u64::MAX - 1, u64::MAX][..])), 0..40),
        ) {
            check(if r { [0xff; 16] } else { 1u128.to_le_bytes() }, &blocks);
        }
    }
}
