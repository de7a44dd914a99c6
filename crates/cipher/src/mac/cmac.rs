//! `cmac` (NIST SP 800-38B): CBC-MAC with a masked last block.
//!
//! With L = E(0): K1 = x * L, K2 = x^2 * L in GF(2^128). The last block M: M ^ K1 if it is whole,
//! else (M || 1 || 0..) ^ K2.

use zeroize::Zeroize;

use super::{Mac, MacBytes, Messages, chain};
use crate::aead::MANY;
use crate::block::{AnyCipher, BlockCipher, xor};
use crate::{Locked, Result};

pub(crate) struct Cmac {
    cipher: AnyCipher<16>,
    /// The masks K1 and K2.
    masks: Locked<[[u8; 16]; 2]>,
}

/// x * block, big-endian, modulo x^128 + x^7 + x^2 + x + 1.
fn double(block: [u8; 16]) -> [u8; 16] {
    let x = u128::from_be_bytes(block);
    ((x << 1) ^ ((x >> 127) * 0x87)).to_be_bytes()
}

impl Cmac {
    /// Returns `Memory` when the masks cannot be placed on locked pages.
    pub(crate) fn new(cipher: AnyCipher<16>) -> Result<Self> {
        let mut l = [[0; 16]];
        cipher.encrypt(&mut l);
        let one = double(l[0]);
        let masks = Locked::new([one, double(one)]);
        l.zeroize();
        Ok(Self { cipher, masks: masks? })
    }
}

/// Block `at` of head || sector, and the number of its bytes.
fn block(head: &[u8], sector: &[u8], at: usize) -> ([u8; 16], usize) {
    let (mut block, start) = ([0; 16], at * 16);
    let len = 16.min(head.len() + sector.len() - start);
    if start >= head.len() {
        block[..len].copy_from_slice(&sector[start - head.len()..][..len]);
    } else {
        let of_head = len.min(head.len() - start);
        block[..of_head].copy_from_slice(&head[start..][..of_head]);
        block[of_head..len].copy_from_slice(&sector[..len - of_head]);
    }
    (block, len)
}

impl Mac for Cmac {
    fn sums(&self, messages: &Messages<'_>, sums: &mut [MacBytes]) {
        let mut states = [[0; 16]; MANY];
        let states = &mut states[..messages.count()];
        let last = (messages.head + messages.bytes()).div_ceil(16) - 1;
        for at in 0..last {
            chain(&self.cipher, states, |nth| {
                let (head, sector) = messages.get(nth);
                block(head, sector, at).0
            });
        }
        chain(&self.cipher, states, |nth| {
            let (head, sector) = messages.get(nth);
            match block(head, sector, last) {
                (whole, 16) => xor(&whole, &self.masks[0]),
                (mut part, len) => {
                    part[len] = 0x80;
                    xor(&part, &self.masks[1])
                }
            }
        });
        for (sum, state) in sums.iter_mut().zip(states) {
            sum[..16].copy_from_slice(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aead::Associated;
    use crate::block::library;

    /// NIST SP 800-38B, D.1, with the message cut into head and sector at each place.
    #[test]
    fn the_standards_examples_hold() {
        let key = hex::decode("2b7e151628aed2a6abf7158809cf4f3c").unwrap();
        let message = hex::decode(concat!(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
        ))
        .unwrap();
        let cmac = Cmac::new(library::<aes::Aes128, 16>(&key).unwrap()).unwrap();
        for (len, sum) in [
            (16, "070a16b46b4d4144f79bdd9dd04a287c"),
            (40, "dfa66747de9ae63030ca32611497c827"),
            (64, "51f0bebf7e3b9d92fc49741779363cfe"),
        ] {
            for head in (0..len).step_by(8).filter(|head| *head <= 40) {
                let heads = [Associated::from_bytes(&message[..head])];
                let mut sums = [[0; 64]];
                cmac.sums(&Messages { heads: &heads, head, data: &message[head..len] }, &mut sums);
                assert_eq!(hex::encode(&sums[0][..16]), sum, "{len} bytes, {head} of them head");
            }
        }
    }
}
