//! `hctr2`: a sector as one wide block, from AES in counter mode and POLYVAL (Crowley, Huckleberry,
//! Biggers, "Length-preserving encryption with HCTR2", 2021).
//!
//! With hbar = E(le128(0)) and L = E(le128(1)), M || N = P with 16 bytes of M: MM = M ^ H(T, N), UU
//! = E(MM), S = MM ^ UU ^ L, V = N ^ XCTR(S), U = UU ^ H(T, V), C = U || V. XCTR's block i, from 1,
//! is E(S ^ le128(i)). H(T, X) = POLYVAL_hbar(le128(2 bits(T) + 2) || T || X) for whole blocks.

use cipher::inout::InOutBuf;
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use zeroize::Zeroize;

use super::{ChainCipher, GROUP};
use crate::block::{BlockCipher, blocks, xor};
use crate::kernel::{CryptDirection, Hctr2Key};
use crate::{Locked, Result};

/// AES on the vector kernels.
pub(crate) struct AesHctr2 {
    pub(crate) key: Hctr2Key,
}

impl ChainCipher<32> for AesHctr2 {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.key.apply(CryptDirection::Encrypt, ivs, data);
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.key.apply(CryptDirection::Decrypt, ivs, data);
    }
}

/// AES of a library.
pub(crate) struct Hctr2<C> {
    data: C,
    secret: Locked<Secret>,
}

struct Secret {
    /// POLYVAL with the key hbar, after the length and before the tweak.
    hash: Polyval,
    l: [u8; 16],
}

impl<C: BlockCipher<16>> Hctr2<C> {
    /// Returns `Memory` when the subkeys cannot be placed on locked pages.
    pub(crate) fn new(data: C) -> Result<Self> {
        let mut subkeys = [[0; 16], 1u128.to_le_bytes()];
        data.encrypt(&mut subkeys);
        let mut hash = Polyval::new((&subkeys[0]).into());
        hash.update(&[(2 * 256 + 2u128).to_le_bytes().into()]);
        let secret = Locked::new(Secret { hash, l: subkeys[1] });
        subkeys.zeroize();
        Ok(Self { data, secret: secret? })
    }

    fn hash(&self, tweak: &[u8; 32], wide: &[[u8; 16]]) -> [u8; 16] {
        let mut hash = self.secret.hash.clone();
        hash.update(polyval::Block::cast_slice_from_core(tweak.as_chunks::<16>().0));
        hash.update(polyval::Block::cast_slice_from_core(wide));
        hash.finalize().into()
    }

    fn sector(&self, tweak: &[u8; 32], sector: InOutBuf<'_, '_, [u8; 16]>, encrypt: bool) {
        let (mut narrow, mut wide) = sector.split_at(1);
        let before = xor(&narrow.get_in()[0], &self.hash(tweak, wide.get_in()));
        let mut after = [before];
        if encrypt {
            self.data.encrypt(&mut after);
        } else {
            self.data.decrypt(&mut after);
        }
        let s = u128::from_le_bytes(xor(&xor(&before, &after[0]), &self.secret.l));
        let (mut stream, mut i, mut rest) = ([[0; 16]; GROUP], 1u128, wide.reborrow());
        while !rest.is_empty() {
            let n = GROUP.min(rest.len());
            let group;
            (group, rest) = rest.split_at(n);
            for (block, i) in stream[..n].iter_mut().zip(i..) {
                *block = (s ^ i).to_le_bytes();
            }
            i += n as u128;
            self.data.encrypt(&mut stream[..n]);
            for (mut block, stream) in group.into_iter().zip(&stream) {
                let sum = xor(block.get_in(), stream);
                *block.get_out() = sum;
            }
        }
        narrow.get_out()[0] = xor(&after[0], &self.hash(tweak, wide.get_out()));
    }

    fn sectors(&self, ivs: &[[u8; 32]], data: InOutBuf<'_, '_, u8>, encrypt: bool) {
        let mut rest = blocks::<16>(data);
        let per_sector = rest.len() / ivs.len();
        for iv in ivs {
            let sector;
            (sector, rest) = rest.split_at(per_sector);
            self.sector(iv, sector, encrypt);
        }
    }
}

impl<C: BlockCipher<16>> ChainCipher<32> for Hctr2<C> {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, true);
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::block::library;

    #[test]
    fn the_authors_vectors_hold_both_ways() {
        let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/hctr2.json")).unwrap();
        let vectors = vectors.as_array().unwrap();
        assert_eq!(vectors.len(), 80);
        for vector in vectors {
            let bytes = |field: &str| hex::decode(vector[field].as_str().unwrap()).unwrap();
            let (key, plain, cipher) = (bytes("key"), bytes("plaintext"), bytes("ciphertext"));
            let aes = match key.len() {
                16 => library::<aes::Aes128, 16>(&key),
                24 => library::<aes::Aes192, 16>(&key),
                _ => library::<aes::Aes256, 16>(&key),
            };
            let mode = Hctr2::new(aes.unwrap()).unwrap();
            let tweak: [u8; 32] = bytes("tweak").try_into().unwrap();
            let mut out = vec![0; plain.len()];
            mode.encrypt(&mut [tweak], InOutBuf::new(&plain, &mut out).unwrap());
            assert_eq!(hex::encode(&out), hex::encode(&cipher), "{} bytes", plain.len());
            mode.decrypt(&mut [tweak], (&mut out[..]).into());
            assert_eq!(out, plain);
        }
    }
}
