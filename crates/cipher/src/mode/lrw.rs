//! `lrw`: C = E(P ^ T) ^ T with T = K2 * I in GF(2^128), I the block's number (Liskov, Rivest,
//! Wagner, "Tweakable Block Ciphers", 2002; IEEE P1619 draft 2004).
//!
//! The key is the cipher's, then K2, which is as wide as a block. I begins at the IV and counts up,
//! big-endian; numbers and field elements are big-endian throughout, modulo x^128 + x^7 + x^2 + x +
//! 1. Ciphers of 8-byte blocks, which only TrueCrypt has in this mode, work in GF(2^64) modulo x^64
//! + x^4 + x^3 + x + 1.

use cipher::inout::InOutBuf;

use super::{ChainCipher, GROUP};
use crate::block::{BlockCipher, blocks, xor};
use crate::{Locked, Result};

pub(crate) struct Lrw<C, const B: usize> {
    pub(crate) data: C,
    /// K2 * x^k, by k; as many as a block has bits.
    powers: Locked<[u128; 128]>,
    /// K2 * (2^(k + 1) - 1), by k: the change of T where k bits of I carry.
    steps: Locked<[u128; 128]>,
}

impl<C, const B: usize> Lrw<C, B> {
    /// Bits of a block and of a field element.
    const BITS: usize = 8 * B;
    /// The bits of a field element, in a number of 128.
    const MASK: u128 = u128::MAX >> (128 - Self::BITS);
    /// The field's polynomial without its highest term.
    const POLYNOMIAL: u128 = if B == 16 { 0x87 } else { 0x1b };

    /// Returns `Memory` when the tables cannot be placed on locked pages.
    pub(crate) fn new(data: C, tweak: &[u8]) -> Result<Self> {
        let (mut powers, mut steps) = (Locked::new([0u128; 128])?, Locked::new([0; 128])?);
        let (mut power, mut sum) = (tweak.iter().fold(0, |sum, &byte| (sum << 8) | u128::from(byte)), 0);
        for (p, s) in powers.iter_mut().zip(steps.iter_mut()).take(Self::BITS) {
            sum ^= power;
            (*p, *s) = (power, sum);
            let carry = power >> (Self::BITS - 1);
            power = (power << 1 & Self::MASK) ^ (carry.wrapping_neg() & Self::POLYNOMIAL);
        }
        Ok(Self { data, powers, steps })
    }

    /// K2 * i.
    fn product(&self, i: u128) -> u128 {
        (0..Self::BITS).fold(0, |sum, k| sum ^ (self.powers[k] & ((i >> k) & 1).wrapping_neg()))
    }
}

impl<C: BlockCipher<B>, const B: usize> Lrw<C, B> {
    fn sectors(&self, ivs: &[[u8; B]], data: InOutBuf<'_, '_, u8>, apply: impl Fn(&C, &mut [[u8; B]])) {
        let mut rest = blocks::<B>(data);
        let per_sector = rest.len() / ivs.len();
        let mut tweaks = [[0; B]; GROUP];
        let (mut i, mut t) = (0, 0);
        for iv in ivs {
            let mut sector;
            (sector, rest) = rest.split_at(per_sector);
            let first = iv.iter().fold(0, |number, &byte| (number << 8) | u128::from(byte));
            // With `benbi` a sector's counter continues that of the last one.
            if i != first {
                (i, t) = (first, self.product(first));
            }
            while !sector.is_empty() {
                let n = GROUP.min(sector.len());
                let mut group;
                (group, sector) = sector.split_at(n);
                for (mut block, tweak) in group.reborrow().into_iter().zip(&mut tweaks) {
                    tweak.copy_from_slice(&t.to_be_bytes()[16 - B..]);
                    t ^= self.steps[(i.trailing_ones() as usize).min(Self::BITS - 1)];
                    i = i.wrapping_add(1) & Self::MASK;
                    let mixed = xor(block.get_in(), tweak);
                    *block.get_out() = mixed;
                }
                let out = group.into_out();
                apply(&self.data, out);
                for (block, tweak) in out.iter_mut().zip(&tweaks) {
                    *block = xor(block, tweak);
                }
            }
        }
    }
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Lrw<C, B> {
    fn encrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, |cipher, blocks| cipher.encrypt(blocks));
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, |cipher, blocks| cipher.decrypt(blocks));
    }

    fn is_local(&self) -> bool {
        true
    }
}
