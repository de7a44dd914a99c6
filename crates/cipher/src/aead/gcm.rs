//! `gcm`: counter mode and GHASH (NIST SP 800-38D), over any block cipher of 16 bytes: for ciphers
//! without a library for the whole mode.
//!
//! H = E(0). J = nonce || be32(1); block i of the stream is E(nonce || be32(1 + i)), i from 1. Tag
//! = E(J) ^ GHASH_H(A padded || C || be64(bits of A) || be64(bits of C)), cut.

use cipher::inout::InOutBuf;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::SectorAead;
use super::counter::add_stream;
use crate::block::{AnyCipher, BlockCipher, xor};
use crate::{Locked, Result};

pub(crate) struct Gcm {
    cipher: AnyCipher<16>,
    /// GHASH with the key H.
    hash: Locked<GHash>,
}

impl Gcm {
    /// Returns `Memory` when the subkey cannot be placed on locked pages.
    pub(crate) fn new(cipher: AnyCipher<16>) -> Result<Self> {
        let mut h = [[0; 16]];
        cipher.encrypt(&mut h);
        let hash = Locked::new(<GHash as ghash::universal_hash::KeyInit>::new((&h[0]).into()));
        h.zeroize();
        Ok(Self { cipher, hash: hash? })
    }

    fn tag(&self, nonce: &[u8; 12], associated: &[u8], ciphertext: &[u8]) -> [u8; 16] {
        let mut hash = (*self.hash).clone();
        hash.update_padded(associated);
        hash.update_padded(ciphertext);
        let bits = |bytes: &[u8]| (bytes.len() as u64 * 8).to_be_bytes();
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&bits(associated));
        lengths[8..].copy_from_slice(&bits(ciphertext));
        hash.update(&[lengths.into()]);
        let mut first = [counter(nonce, 1)];
        self.cipher.encrypt_untidied(&mut first);
        xor(&first[0], &hash.finalize().into())
    }

    fn add_stream(&self, nonce: &[u8; 12], data: InOutBuf<'_, '_, u8>) {
        add_stream(&self.cipher, 2, |number| counter(nonce, number), data);
    }
}

/// The block of a counter; a sector has too few blocks for the counter to wrap.
fn counter(nonce: &[u8; 12], number: u32) -> [u8; 16] {
    let mut block = [0; 16];
    block[..12].copy_from_slice(nonce);
    block[12..].copy_from_slice(&number.to_be_bytes());
    block
}

impl SectorAead for Gcm {
    fn seal(&self, nonce: &[u8; 12], associated: &[u8], mut data: InOutBuf<'_, '_, u8>, tag: &mut [u8]) {
        self.add_stream(nonce, data.reborrow());
        let sum = self.tag(nonce, associated, data.get_out());
        tag.copy_from_slice(&sum[..tag.len()]);
    }

    fn open(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, tag: &[u8]) -> bool {
        let sum = self.tag(nonce, associated, data.get_in());
        let is_right: bool = sum[..tag.len()].ct_eq(tag).into();
        if is_right {
            self.add_stream(nonce, data);
        }
        is_right
    }
}
