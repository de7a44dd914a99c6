//! `xts`: XEX with a tweak for each sector (IEEE 1619-2007, NIST SP 800-38E).
//!
//! T = E_key2(IV); block j: C = E_key1(P ^ T*x^j) ^ T*x^j in GF(2^128). The key is key1 then key2.
//! The modes here take T as their IV; [`EncryptedTweaks`] makes T of the IV, where no generator
//! does.

use cipher::inout::InOutBuf;

use super::{ChainCipher, GROUP};
use crate::block::{BlockCipher, blocks, xor};
use crate::kernel::{AesKey, CryptDirection, SectorBytes, double};
use crate::{CpuPath, SharedDestination, SharedSource};

/// AES on the vector kernels.
pub(crate) struct AesXts {
    /// Encrypts the data: key1.
    pub(crate) data: AesKey,
}

impl ChainCipher<16> for AesXts {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.data.xts(CryptDirection::Encrypt, ivs, data.into());
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.data.xts(CryptDirection::Decrypt, ivs, data.into());
    }

    fn encrypt_from(&self, ivs: &mut [[u8; 16]], source: SharedSource<'_>, data: &mut [u8]) {
        self.data.xts(CryptDirection::Encrypt, ivs, SectorBytes::from_shared(source, data));
    }

    fn decrypt_to(&self, ivs: &mut [[u8; 16]], data: &mut [u8], destination: SharedDestination<'_>) {
        self.data.xts(CryptDirection::Decrypt, ivs, SectorBytes::to_shared(data, destination));
    }

    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        Some(self.data.paths())
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// A mode with encrypted IVs.
pub(crate) struct EncryptedTweaks<M, C> {
    pub(crate) mode: M,
    /// Encrypts the IVs: key2.
    pub(crate) by: C,
}

impl<M: ChainCipher<16>, C: BlockCipher<16>> ChainCipher<16> for EncryptedTweaks<M, C> {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.by.encrypt(ivs);
        self.mode.encrypt(ivs, data);
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.by.encrypt(ivs);
        self.mode.decrypt(ivs, data);
    }

    fn encrypt_from(&self, ivs: &mut [[u8; 16]], source: SharedSource<'_>, data: &mut [u8]) {
        self.by.encrypt(ivs);
        self.mode.encrypt_from(ivs, source, data);
    }

    fn decrypt_to(&self, ivs: &mut [[u8; 16]], data: &mut [u8], destination: SharedDestination<'_>) {
        self.by.encrypt(ivs);
        self.mode.decrypt_to(ivs, data, destination);
    }

    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        self.mode.cpu_paths()
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// Any block cipher of a library.
pub(crate) struct Xts<C> {
    /// Encrypts the data: key1.
    pub(crate) data: C,
}

impl<C: BlockCipher<16>> Xts<C> {
    /// Runs groups of blocks through the cipher, whichever sectors they belong to.
    fn sectors(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>, apply: impl Fn(&C, &mut [[u8; 16]])) {
        let mut starts = ivs.iter();
        let mut rest = blocks::<16>(data);
        let per_sector = rest.len() / starts.len();
        let mut tweaks = [[0; 16]; GROUP];
        let mut carry = None;
        let mut left_in_sector = 0;
        while !rest.is_empty() {
            let mut group;
            (group, rest) = {
                let n = GROUP.min(rest.len());
                rest.split_at(n)
            };
            let mut filled = 0;
            while filled < group.len() {
                let start = carry.take().unwrap_or_else(|| {
                    left_in_sector = per_sector;
                    starts.next().map_or([0; 2], words)
                });
                let n = left_in_sector.min(group.len() - filled);
                let next = powers(start, &mut tweaks[filled..filled + n]);
                filled += n;
                left_in_sector -= n;
                carry = (left_in_sector > 0).then_some(next);
            }
            let tweaks = &tweaks[..group.len()];
            for (mut block, tweak) in group.reborrow().into_iter().zip(tweaks) {
                let mixed = xor(block.get_in(), tweak);
                *block.get_out() = mixed;
            }
            let out = group.into_out();
            apply(&self.data, out);
            for (block, tweak) in out.iter_mut().zip(tweaks) {
                *block = xor(block, tweak);
            }
        }
    }
}

/// Fills `out` with start * x^j and returns the tweak that follows.
fn powers(start: Tweak, out: &mut [[u8; 16]]) -> Tweak {
    let mut tweak = start;
    for block in out {
        let (low, high) = block.split_at_mut(8);
        low.copy_from_slice(&tweak[0].to_le_bytes());
        high.copy_from_slice(&tweak[1].to_le_bytes());
        tweak = double(tweak);
    }
    tweak
}

/// The words of a tweak, the lower one first.
type Tweak = [u64; 2];

fn words(tweak: &[u8; 16]) -> Tweak {
    let mut words = [0; 2];
    for (word, bytes) in words.iter_mut().zip(tweak.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

impl<C: BlockCipher<16>> ChainCipher<16> for Xts<C> {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, |cipher, blocks| cipher.encrypt(blocks));
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.sectors(ivs, data, |cipher, blocks| cipher.decrypt(blocks));
    }

    fn is_local(&self) -> bool {
        true
    }
}
