//! eCryptfs: MD5(root || N in decimal, zero-padded to 16 bytes), cut to the IV's width; root = MD5(key), N counts extents.
//!
//! MD5's 64 steps wait for each other, so the IVs of several extents are made side by side, one in each lane.

use md5::{Digest, Md5};
use zeroize::Zeroize;

use super::IvGenerator;
use crate::sector::Run;
use crate::{Locked, Result};

mod lanes;

use lanes::LANES;

pub(crate) struct Extents {
    root: Locked<[u32; 4]>,
}

impl Extents {
    /// # Errors
    /// `Memory` when no page could be had.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        let mut digest: [u8; 16] = Md5::digest(key).into();
        let root = Locked::new(words(&digest));
        digest.zeroize();
        Ok(Self { root: root? })
    }
}

impl<const W: usize> IvGenerator<W> for Extents {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        let mut numbers = Decimal::new(run.number(0));
        for ivs in ivs.chunks_mut(LANES) {
            let mut message = [[0; LANES]; 16];
            let texts: [_; LANES] = std::array::from_fn(|_| numbers.next());
            for (at, root) in self.root.iter().enumerate() {
                message[at] = [*root; LANES];
                message[4 + at] = texts.map(|text| text[at]);
            }
            // RFC 1321, 3.1 and 3.2: a one bit behind the 32 bytes, their length in bits at the end.
            message[8] = [0x80; LANES];
            message[14] = [256; LANES];
            let digest = lanes::compress(&message);
            for (lane, iv) in ivs.iter_mut().enumerate() {
                for (bytes, word) in iv.chunks_exact_mut(4).zip(&digest) {
                    bytes.copy_from_slice(&word[lane].to_le_bytes());
                }
            }
        }
    }
}

fn words(bytes: &[u8; 16]) -> [u32; 4] {
    std::array::from_fn(|n| u32::from_le_bytes([0, 1, 2, 3].map(|at| bytes[4 * n + at])))
}

/// A number that is counted up as text: divisions cost more than the carry.
struct Decimal {
    text: [u8; 16],
    len: usize,
}

impl Decimal {
    /// An extent's number has 16 digits at most: a file's length is less than 2^63.
    fn new(mut number: u64) -> Self {
        let mut reversed = [0; 20];
        let mut len = 0;
        while len == 0 || number > 0 {
            // A digit.
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

    /// The number as MD5 takes it; the next one is the number after it.
    fn next(&mut self) -> [u32; 4] {
        let text = words(&self.text);
        self.step();
        text
    }

    fn step(&mut self) {
        for digit in self.text[..self.len].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
        // All were nines: one digit more.
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
        let iv = Extents::new(&key).unwrap();
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
