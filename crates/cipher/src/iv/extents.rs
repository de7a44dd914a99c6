//! eCryptfs: MD5(root || N in decimal, zero-padded to 16 bytes), cut to the IV's width; root =
//! MD5(key), N counts extents.
//!
//! A message fills half a block of MD5, so an IV is one compression. Eight side by side in plain
//! arrays took two thirds of the time: not worth their code, since encrypting an extent takes many
//! times as long.

use md5::block_api::compress;
use md5::{Digest, Md5};
use zeroize::Zeroize;

use super::IvGenerator;
use crate::sector::Run;
use crate::{Locked, Result};

pub(crate) struct ExtentIv {
    root: Locked<[u8; 16]>,
}

impl ExtentIv {
    /// Returns `Memory` when the system has no page.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        let mut digest: [u8; 16] = Md5::digest(key).into();
        let root = Locked::new(digest);
        digest.zeroize();
        Ok(Self { root: root? })
    }
}

impl<const W: usize> IvGenerator<W> for ExtentIv {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        let mut number = Decimal::new(run.number(0));
        // The padding of RFC 1321, 3.1 and 3.2: a one bit behind the 32 bytes, their length in bits
        // at the end.
        let mut message = [0; 64];
        message[..16].copy_from_slice(&*self.root);
        (message[32], message[57]) = (0x80, 1);
        for iv in ivs {
            message[16..32].copy_from_slice(&number.text);
            number.step();
            let mut state = MD5;
            compress(&mut state, &[message]);
            for (bytes, word) in iv.chunks_exact_mut(4).zip(state) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        message.zeroize();
    }
}

/// MD5's initial state (RFC 1321, 3.3).
const MD5: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// A number that counts up as text: divisions cost more than the carry.
struct Decimal {
    text: [u8; 16],
    len: usize,
}

impl Decimal {
    /// Converts a number of at most 16 digits: a file's length is less than 2^63.
    fn new(mut number: u64) -> Self {
        let mut reversed = [0; 20];
        let mut len = 0;
        while len == 0 || number > 0 {
            // The remainder is a digit.
            reversed[len] = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            len += 1;
        }
        let mut text = [0; 16];
        for (to, from) in text.iter_mut().zip(reversed[..len].iter().rev()) {
            *to = *from;
        }
        Self { text, len: len.min(16) }
    }

    fn step(&mut self) {
        for digit in self.text[..self.len].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
        // All digits were nines: the number gets another digit.
        if self.len < self.text.len() {
            self.text[0] = b'1';
            self.text[self.len] = b'0';
            self.len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SectorSize;

    #[test]
    fn ivs_are_what_the_formula_says() {
        let key = [7u8; 16];
        let iv = ExtentIv::new(&key).unwrap();
        for first in [0u64, 1, 5, 9, 95, 990, 99_990, u64::from(u32::MAX) - 3, 999_999_999_990, 1 << 50] {
            let mut made = [[0u8; 16]; 37];
            iv.fill(Run::new(first * 8, SectorSize::S4096, true), &mut made);
            for (nth, made) in made.iter().enumerate() {
                let mut message = [0; 32];
                message[..16].copy_from_slice(&Md5::digest(key));
                let number = (first + nth as u64).to_string();
                message[16..16 + number.len()].copy_from_slice(number.as_bytes());
                assert_eq!(made[..], Md5::digest(message)[..], "extent {number}");
            }
        }
    }
}
