//! `adiantum`: a sector as one wide block, from XChaCha, AES on one block, and hashes (Crowley,
//! Biggers, "Adiantum: length-preserving encryption for entry-level processors", 2018).
//!
//! P = P_L || P_R with 16 bytes of P_R. P_M = P_R + H(T, P_L); C_M = E(P_M); C_L = P_L ^
//! XChaCha(nonce C_M || 1); C_R = C_M - H(T, C_L). Sums modulo 2^128, little-endian. K_E, K_T, K_M
//! and K_N are the stream of XChaCha(nonce 1).

use chacha20::Rounds;
use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::ChainCipher;
use super::nhpoly1305::{HASH_KEY, HashKey};
use super::stream::ChaCha;
use crate::block::{AnyCipher, BlockCipher};
use crate::kernel::{NhLanes, SUBKEYS};
use crate::{CpuPath, Locked, Result};

pub(crate) struct Adiantum<R> {
    stream: ChaCha<R>,
    /// The block cipher with the key K_E.
    block: AnyCipher<16>,
    hash: Locked<HashKey>,
    /// Vector code for the message's hash, where the processor can run it.
    lanes: Option<NhLanes>,
}

/// Bytes that three passes handle before the next: they stay in the first-level cache.
const CLOSE: usize = 32 << 10;

/// The bytes behind C_M in every nonce, as the state's last words.
const REST_OF_NONCE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

impl<R: Rounds> Adiantum<R> {
    /// `block` keys the block cipher, which takes 32 bytes.
    pub(crate) fn new(
        key: &[u8],
        path: CpuPath,
        block: impl FnOnce(&[u8]) -> Result<AnyCipher<16>>,
    ) -> Result<Self> {
        let stream = ChaCha::new(key, path)?;
        let mut iv = [0; 32];
        iv[0] = 1;
        let mut derived = [0; 32 + HASH_KEY];
        stream.add_extended(&[iv], (&mut derived[..]).into());
        let (e, hash) = derived.split_at(32);
        let keys = block(e).and_then(|block| Ok((block, Locked::new(HashKey::new(hash))?)));
        derived.zeroize();
        let (block, hash) = keys?;
        Ok(Self { stream, block, hash, lanes: NhLanes::of(path) })
    }

    /// Encrypts or decrypts at most [`SUBKEYS`] sectors.
    fn group(&self, tweaks: &[[u8; 32]], data: InOutBuf<'_, '_, u8>, encrypt: bool) {
        let (count, bytes) = (tweaks.len(), data.len() / tweaks.len());
        let wide = bytes - 16;
        let (mut headers, mut before) = ([0; SUBKEYS], [[0; 16]; SUBKEYS]);
        for (nth, sector) in data.get_in().chunks_exact(bytes).enumerate() {
            let (left, right) = sector.split_at(wide);
            let mut last = [0; 16];
            last.copy_from_slice(right);
            headers[nth] = self.hash.header(&tweaks[nth], wide);
            let sum = headers[nth].wrapping_add(self.hash.message(self.lanes.as_ref(), left));
            before[nth] = u128::from_le_bytes(last).wrapping_add(sum).to_le_bytes();
        }
        let mut after = before;
        if encrypt {
            self.block.encrypt_untidied(&mut after[..count]);
        } else {
            self.block.decrypt(&mut after[..count]);
        }
        // The nonce is C_M: behind the cipher when encrypting, before it when decrypting.
        let mut subkeys = [[0; 32]; SUBKEYS];
        self.stream.subkeys(if encrypt { &after } else { &before }, count, &mut subkeys);
        let mut rest = data;
        for nth in 0..count {
            let sector;
            (sector, rest) = rest.split_at(bytes);
            let (mut left, mut right) = sector.split_at(wide);
            self.stream.add(&subkeys[nth], &REST_OF_NONCE, left.reborrow());
            let sum = headers[nth].wrapping_add(self.hash.message(self.lanes.as_ref(), left.get_out()));
            let last = u128::from_le_bytes(after[nth]).wrapping_sub(sum);
            right.get_out().copy_from_slice(&last.to_le_bytes());
        }
        subkeys.zeroize();
    }

    fn sectors(&self, ivs: &[[u8; 32]], data: InOutBuf<'_, '_, u8>, encrypt: bool) {
        let bytes = data.len() / ivs.len();
        let mut rest = data;
        for ivs in ivs.chunks((CLOSE / bytes).clamp(1, SUBKEYS)) {
            let group;
            (group, rest) = rest.split_at(ivs.len() * bytes);
            self.group(ivs, group, encrypt);
        }
        self.stream.wipe();
    }
}

impl<R: Rounds + Send + Sync> ChainCipher<32> for Adiantum<R> {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, true);
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, false);
    }
}
