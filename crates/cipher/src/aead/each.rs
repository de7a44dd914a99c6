//! Modes with one sector a call, and their nonces.
//!
//! `gcm`, `rfc7539`: the nonce is the IV, 12 bytes; authenticated is le64(number) || IV. `rfc4106`,
//! `rfc7539esp`: the nonce is 4 bytes of salt, which the key ends with, and the IV of 8 bytes;
//! authenticated is le64(number) alone.

use cipher::inout::InOutBuf;

use super::{Aead, Associated, Tags, TagsMut, sectors};
use crate::sector::Run;
use crate::{BadSector, Key};

/// A keyed AEAD (RFC 5116), with one sector a call.
pub(crate) trait SectorAead: Send + Sync {
    /// Encrypts, and writes a tag as long as `tag`.
    fn seal(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, tag: &mut [u8]);

    /// Decrypts if the tag is right; otherwise leaves nothing decrypted and returns false.
    fn open(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, tag: &[u8]) -> bool;
}

/// The rule that makes a nonce of an IV.
pub(crate) enum Nonces {
    /// The nonce is the IV.
    Iv,
    /// The nonce is the salt, then the IV.
    Salted(Key),
}

impl Nonces {
    /// The nonce of a sector.
    #[inline]
    pub(super) fn nonce<const W: usize>(&self, iv: &[u8; W]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[12 - W..].copy_from_slice(iv);
        if let Self::Salted(salt) = self {
            nonce[..12 - W].copy_from_slice(salt.as_bytes());
        }
        nonce
    }
}

/// A mode that takes sector after sector.
pub(crate) struct EachSector {
    pub(crate) each: Box<dyn SectorAead>,
    pub(crate) nonces: Nonces,
}

impl EachSector {
    /// Calls a function with the nonce and the authenticated bytes of a sector.
    #[inline]
    fn with<const W: usize, T>(
        &self,
        run: Run,
        nth: usize,
        iv: &[u8; W],
        apply: impl FnOnce(&[u8; 12], &[u8]) -> T,
    ) -> T {
        let associated = Associated::of(run, nth, iv);
        let nonce = self.nonces.nonce(iv);
        match &self.nonces {
            Nonces::Iv => apply(&nonce, associated.first(8 + W)),
            Nonces::Salted(_) => apply(&nonce, associated.first(8)),
        }
    }
}

impl<const W: usize> Aead<W> for EachSector {
    fn seal(&self, run: Run, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>) {
        for (nth, (iv, sector)) in ivs.iter().zip(sectors(data, ivs.len())).enumerate() {
            self.with(run, nth, iv, |nonce, associated| {
                self.each.seal(nonce, associated, sector, tags.get(nth));
            });
        }
    }

    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> Result<(), BadSector> {
        for (nth, (iv, sector)) in ivs.iter().zip(sectors(data, ivs.len())).enumerate() {
            let is_right = self.with(run, nth, iv, |nonce, associated| {
                self.each.open(nonce, associated, sector, tags.get(nth))
            });
            if !is_right {
                return Err(BadSector(nth));
            }
        }
        Ok(())
    }
}
