//! `ctr`: C_j = P_j ^ E(IV + j), the sum big-endian over the whole block (NIST SP 800-38A, 6.5).
//!
//! Sectors whose counters overlap share their key stream: with `plain64` sector S and block j meet
//! where be(le64(S)) + j is the same. dm-crypt accepts this; it protects little.

use cipher::inout::InOutBuf;

use super::{ChainCipher, GROUP};
use crate::block::{BlockCipher, blocks, xor};

pub(crate) struct Ctr<C> {
    pub(crate) data: C,
}

/// `block` + 1, big-endian, wrapping.
fn increment<const B: usize>(mut block: [u8; B]) -> [u8; B] {
    let (rest, words) = block.as_rchunks_mut::<8>();
    for word in words.iter_mut().rev() {
        let (sum, carry) = u64::from_be_bytes(*word).overflowing_add(1);
        *word = sum.to_be_bytes();
        if !carry {
            return block;
        }
    }
    for byte in rest.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    block
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Ctr<C> {
    fn encrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        let mut rest = blocks::<B>(data);
        let per_sector = rest.len() / ivs.len();
        let mut stream = [[0; B]; GROUP];
        for iv in ivs {
            let mut counter = *iv;
            let mut sector;
            (sector, rest) = rest.split_at(per_sector);
            while !sector.is_empty() {
                let n = GROUP.min(sector.len());
                let group;
                (group, sector) = sector.split_at(n);
                for block in &mut stream[..n] {
                    *block = counter;
                    counter = increment(counter);
                }
                self.data.encrypt(&mut stream[..n]);
                for (mut block, stream) in group.into_iter().zip(&stream) {
                    let sum = xor(block.get_in(), stream);
                    *block.get_out() = sum;
                }
            }
        }
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.encrypt(ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::increment;

    #[test]
    fn counters_carry_through_all_their_bytes() {
        for (block, next) in [
            (0u128, 1u128),
            (0xff, 0x100),
            (u128::from(u64::MAX), 1 << 64),
            ((7 << 64) - 1, 7 << 64),
            (u128::MAX, 0),
        ] {
            assert_eq!(increment(block.to_be_bytes()), next.to_be_bytes());
        }
        assert_eq!(increment([0xff; 8]), [0; 8]);
        assert_eq!(increment([1, 0xff, 0xff]), [2, 0, 0]);
    }
}
