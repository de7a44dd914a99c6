//! `adiantum`: a sector as one wide block, from XChaCha, AES on one block, and hashes (Crowley, Biggers, "Adiantum:
//! length-preserving encryption for entry-level processors", 2018).
//!
//! P = P_L || P_R with 16 bytes of P_R. P_M = P_R + H(T, P_L); C_M = E(P_M); C_L = P_L ^ XChaCha(nonce C_M || 1);
//! C_R = C_M - H(T, C_L). Sums modulo 2^128, little-endian. K_E, K_T, K_M and K_N are the stream of XChaCha(nonce 1).

use chacha20::Rounds;
use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::Mode;
use super::nhpoly1305::{HASH_KEY, HashKey};
use super::stream::ChaCha;
use crate::block::AnyCipher;
use crate::{Locked, Result};

pub(crate) struct Adiantum<R> {
    stream: ChaCha<R>,
    /// Under K_E.
    block: AnyCipher<16>,
    hash: Locked<HashKey>,
}

impl<R: Rounds> Adiantum<R> {
    /// `block` keys the block cipher, which takes 32 bytes.
    pub(crate) fn new(key: &[u8], block: impl FnOnce(&[u8]) -> Result<AnyCipher<16>>) -> Result<Self> {
        let stream = ChaCha::new(key)?;
        let mut iv = [0; 32];
        iv[0] = 1;
        let mut derived = [0; 32 + HASH_KEY];
        stream.add_extended(&iv, (&mut derived[..]).into());
        let (e, hash) = derived.split_at(32);
        let keys = block(e).and_then(|block| Ok((block, Locked::new(HashKey::new(hash))?)));
        derived.zeroize();
        let (block, hash) = keys?;
        Ok(Self { stream, block, hash })
    }

    fn sector(&self, tweak: &[u8; 32], data: InOutBuf<'_, '_, u8>, encrypt: bool) {
        let wide = data.len() - 16;
        let (mut left, mut right) = data.split_at(wide);
        let mut last = [0; 16];
        last.copy_from_slice(right.get_in());
        let before =
            u128::from_le_bytes(last).wrapping_add(self.hash.sum(tweak, left.get_in())).to_le_bytes();
        let mut after = [before];
        if encrypt {
            self.block.encrypt(&mut after);
        } else {
            self.block.decrypt(&mut after);
        }
        // The nonce is C_M: behind the cipher when encrypting, before it when decrypting.
        let mut nonce = [0; 32];
        nonce[..16].copy_from_slice(if encrypt { &after[0] } else { &before });
        nonce[16] = 1;
        self.stream.add_extended(&nonce, left.reborrow());
        let last = u128::from_le_bytes(after[0]).wrapping_sub(self.hash.sum(tweak, left.get_out()));
        right.get_out().copy_from_slice(&last.to_le_bytes());
    }

    fn sectors(&self, ivs: &[[u8; 32]], data: InOutBuf<'_, '_, u8>, encrypt: bool) {
        let bytes = data.len() / ivs.len();
        let mut rest = data;
        for iv in ivs {
            let sector;
            (sector, rest) = rest.split_at(bytes);
            self.sector(iv, sector, encrypt);
        }
    }
}

impl<R: Rounds + Send + Sync> Mode<32> for Adiantum<R> {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, true);
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, false);
    }
}
