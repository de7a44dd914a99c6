//! HMAC-SHA256 of numbered blocks, the tags of dm-integrity: for a layer with tags and without a
//! cipher.

use std::fmt;

use super::hmac_sha256::HmacSha256;
use super::{Mac, Messages, NO_SUM};
use crate::aead::{Associated, MANY};
use crate::wipe::wipe_stack;
use crate::{CpuPath, Result};

/// HMAC-SHA256 with one key, of many blocks a call.
pub struct BlockHmac(HmacSha256);

impl BlockHmac {
    /// Bytes of a MAC.
    pub const SIZE: usize = 32;
    /// The longest salt.
    const LONGEST_SALT: usize = 16;

    /// Takes a key of any length.
    ///
    /// # Errors
    /// `Memory` when the states cannot be placed on locked pages; `Unsupported` as
    /// [`CpuPath::chosen`].
    pub fn new(key: &[u8]) -> Result<Self> {
        let mac = HmacSha256::new(CpuPath::chosen()?, key);
        wipe_stack::<4096>();
        Ok(Self(mac?))
    }

    /// Calls `each` with the number and the MAC of each block of `size` bytes, a multiple of 512,
    /// in `data`: the MAC of the salt, le64(its first 512-byte sector) and the block. The first
    /// block begins at `sector`.
    ///
    /// # Panics
    /// When the data is not whole blocks, or the salt is longer than 16 bytes.
    pub fn sums(
        &self,
        salt: &[u8],
        sector: u64,
        data: &[u8],
        size: usize,
        mut each: impl FnMut(usize, &[u8; Self::SIZE]),
    ) {
        assert!(
            size.is_multiple_of(512) && data.len().is_multiple_of(size) && salt.len() <= Self::LONGEST_SALT
        );
        let head = salt.len() + 8;
        let (mut heads, mut sums) = ([Associated::EMPTY; MANY], [NO_SUM; MANY]);
        let mut nth = 0;
        for blocks in data.chunks(MANY * size) {
            let count = blocks.len() / size;
            for (place, heads) in (nth as u64..).zip(&mut heads[..count]) {
                let number = sector.wrapping_add(place.wrapping_mul(size as u64 / 512));
                *heads = Associated::salted(salt, number);
            }
            self.0.sums(&Messages { heads: &heads[..count], head, data: blocks }, &mut sums[..count]);
            for sum in &sums[..count] {
                if let Some(sum) = sum.first_chunk() {
                    each(nth, sum);
                }
                nth += 1;
            }
        }
    }
}

impl fmt::Debug for BlockHmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac as _};
    use sha2::Sha256;

    use super::*;

    #[test]
    fn sums_of_any_number_of_blocks_are_the_librarys() {
        let data: Vec<u8> = (0..=250u8).cycle().take(100 * 4096).collect();
        let key = [7; 40];
        let ours = BlockHmac::new(&key).unwrap();
        for (size, count) in [(512, 1), (512, 100), (4096, 9), (4096, 33), (4096, 100), (1024, 64), (4096, 0)]
        {
            for salt in [&[][..], &[3; 16]] {
                let (data, sector) = (&data[..size * count], u64::MAX - 20);
                let mut seen = 0;
                ours.sums(salt, sector, data, size, |nth, sum| {
                    let library = Hmac::<Sha256>::new_from_slice(&key).unwrap().chain_update(salt);
                    let number = sector.wrapping_add((nth * size / 512) as u64).to_le_bytes();
                    let library = library.chain_update(number).chain_update(&data[nth * size..][..size]);
                    assert_eq!(sum[..], library.finalize().into_bytes()[..], "block {nth} of {count}");
                    seen += 1;
                });
                assert_eq!(seen, count);
            }
        }
    }
}
