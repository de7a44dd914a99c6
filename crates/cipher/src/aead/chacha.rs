//! `rfc7539(chacha20,poly1305)`, of RFC 8439, 2.8, from its two parts: for processors without a
//! library for the whole mode.
//!
//! Poly1305's key is the stream's block 0, the data's stream begins with block 1. Tag = Poly1305(A
//! padded || C padded || le64(bytes of A) || le64(bytes of C)).

use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use cipher::inout::InOutBuf;
use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::SectorAead;
use crate::{Key, Result};

pub(crate) struct ChaChaPoly {
    key: Key,
}

impl ChaChaPoly {
    /// Takes a key of 32 bytes. Returns `Memory` when it cannot be placed on locked pages.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        Ok(Self { key: Key::new(key)? })
    }

    /// The key stream from block 1 on, and Poly1305 with the key from block 0.
    fn parts(&self, nonce: &[u8; 12]) -> (chacha20::ChaCha20, Poly1305) {
        let mut key = [0; 32];
        key.copy_from_slice(self.key.as_bytes());
        let mut stream = chacha20::ChaCha20::new((&key).into(), nonce.into());
        key.zeroize();
        let mut first = [0; 32];
        stream.apply_keystream(&mut first);
        let poly = Poly1305::new((&first).into());
        first.zeroize();
        stream.seek(64u32);
        (stream, poly)
    }
}

fn tag(mut poly: Poly1305, associated: &[u8], ciphertext: &[u8]) -> [u8; 16] {
    poly.update_padded(associated);
    poly.update_padded(ciphertext);
    let mut lengths = [0; 16];
    lengths[..8].copy_from_slice(&(associated.len() as u64).to_le_bytes());
    lengths[8..].copy_from_slice(&(ciphertext.len() as u64).to_le_bytes());
    poly.update(&[lengths.into()]);
    poly.finalize().into()
}

impl SectorAead for ChaChaPoly {
    fn seal(&self, nonce: &[u8; 12], associated: &[u8], mut data: InOutBuf<'_, '_, u8>, out: &mut [u8]) {
        let (mut stream, poly) = self.parts(nonce);
        stream.apply_keystream_inout(data.reborrow());
        out.copy_from_slice(&tag(poly, associated, data.get_out())[..out.len()]);
    }

    fn open(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, given: &[u8]) -> bool {
        let (mut stream, poly) = self.parts(nonce);
        let sum = tag(poly, associated, data.get_in());
        let is_right: bool = sum[..given.len()].ct_eq(given).into();
        if is_right {
            stream.apply_keystream_inout(data);
        }
        is_right
    }
}
