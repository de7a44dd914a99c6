//! HMAC-SHA256 (RFC 2104, FIPS 180-4): of many sectors at once where the processor has vectors for
//! it.
//!
//! A compression waits for the one before, so one sector alone leaves most of the processor idle.

use sha2::block_api::compress256;
use zeroize::Zeroize;

use super::{Mac, MacBytes, Messages};
use crate::kernel::Sha256Lanes;
use crate::{CpuPath, Locked, Result};

/// SHA-256's initial state (FIPS 180-4, 5.3.3).
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

pub(crate) struct HmacSha256 {
    /// The states behind the inner pad, and behind the outer.
    states: Locked<[[u32; 8]; 2]>,
    lanes: Option<Sha256Lanes>,
}

impl HmacSha256 {
    /// Takes a key of any length. Returns `Memory` when the states cannot be placed on locked
    /// pages.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Self> {
        let mut padded = [0; 64];
        if key.len() > 64 {
            use sha2::Digest;
            padded[..32].copy_from_slice(&sha2::Sha256::digest(key));
        } else {
            padded[..key.len()].copy_from_slice(key);
        }
        let mut states = Locked::new([INITIAL; 2])?;
        for (state, pad) in states.iter_mut().zip([0x36, 0x5c]) {
            let mut block = padded.map(|byte| byte ^ pad);
            compress256(state, &[block]);
            block.zeroize();
        }
        padded.zeroize();
        Ok(Self { states, lanes: Sha256Lanes::of(path) })
    }

    fn one(&self, head: &[u8], sector: &[u8]) -> [u8; 32] {
        let [mut state, mut outer] = *self.states;
        let mut block = [0; 64];
        let (first, rest) = sector.split_at(64 - head.len());
        block[..head.len()].copy_from_slice(head);
        block[head.len()..].copy_from_slice(first);
        compress256(&mut state, &[block]);
        let (whole, tail) = rest.as_chunks();
        compress256(&mut state, whole);
        compress256(&mut state, &[last_block(tail, head.len() + sector.len())]);
        compress256(&mut outer, &[last_block(&bytes(&state), 32)]);
        bytes(&outer)
    }
}

fn bytes(state: &[u32; 8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    bytes
}

/// The padded end of a message of `len` bytes behind a pad's block, less than 56 bytes of it.
pub(crate) fn last_block(tail: &[u8], len: usize) -> [u8; 64] {
    let mut block = [0; 64];
    block[..tail.len()].copy_from_slice(tail);
    block[tail.len()] = 0x80;
    block[56..].copy_from_slice(&((64 + len as u64) * 8).to_be_bytes());
    block
}

impl Mac for HmacSha256 {
    fn sums(&self, messages: &Messages<'_>, sums: &mut [MacBytes]) {
        let mut done = 0;
        if let Some(lanes) = &self.lanes {
            done = lanes.hmac(&self.states, messages.count(), |nth| messages.get(nth), sums);
        }
        for (nth, sum) in sums.iter_mut().enumerate().skip(done) {
            let (head, sector) = messages.get(nth);
            sum[..32].copy_from_slice(&self.one(head, sector));
        }
    }
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac as _};
    use sha2::Sha256;

    use super::*;
    use crate::aead::{Associated, MANY};

    #[test]
    fn any_number_of_sectors_has_the_sums_of_the_library_in_every_way() {
        let data: Vec<u8> = (0..=250u8).cycle().take(MANY * 4096).collect();
        let mut ways: Vec<_> = Sha256Lanes::all().into_iter().map(Some).collect();
        ways.push(None);
        for (way, lanes) in ways.into_iter().enumerate() {
            let mut ours = HmacSha256 { lanes, ..HmacSha256::new(CpuPath::Portable, &[]).unwrap() };
            for key in [&[7u8; 32][..], &[], &[9; 64], &[5; 65]] {
                ours.states = HmacSha256::new(CpuPath::Portable, key).unwrap().states;
                for (count, bytes, head) in
                    (1..=MANY).map(|n| (n, 512, 24)).chain([(16, 4096, 24), (32, 1024, 16), (9, 512, 40)])
                {
                    let heads: Vec<_> =
                        (0..count).map(|n| Associated::from_bytes(&data[n..n + head])).collect();
                    let messages = Messages { heads: &heads, head, data: &data[..count * bytes] };
                    let mut sums = vec![[0; 64]; count];
                    ours.sums(&messages, &mut sums);
                    for (nth, sum) in sums.iter().enumerate() {
                        let (head, sector) = messages.get(nth);
                        let library = Hmac::<Sha256>::new_from_slice(key).unwrap();
                        let library = library.chain_update(head).chain_update(sector).finalize();
                        assert_eq!(sum[..32], library.into_bytes()[..], "way {way}, {nth} of {count}");
                    }
                }
            }
        }
    }
}
