//! `gcm(aes)` and `rfc4106(gcm(aes))` on the vector kernels.

use cipher::inout::InOutBuf;

use super::{Aead, Associated, MANY, Nonces, Tags, TagsMut, wipe_wrong};
use crate::BadSector;
use crate::kernel::{CryptDirection, GcmKey, GcmRun};
use crate::sector::Run;

pub(crate) struct AesGcm {
    pub(crate) key: GcmKey,
    pub(crate) nonces: Nonces,
}

impl AesGcm {
    /// Encrypts or decrypts the sectors, and returns their whole tags.
    fn apply<const W: usize>(
        &self,
        direction: CryptDirection,
        run: Run,
        ivs: &[[u8; W]],
        data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; MANY] {
        let (mut firsts, mut heads, mut sums) = ([[0; 16]; MANY], [[0; 32]; MANY], [[0; 16]; MANY]);
        let head = match self.nonces {
            Nonces::Iv => 8 + W,
            Nonces::Salted(_) => 8,
        };
        for (nth, iv) in ivs.iter().enumerate() {
            heads[nth][..head].copy_from_slice(Associated::of(run, nth, iv).first(head));
            firsts[nth][..12].copy_from_slice(&self.nonces.nonce(iv));
            firsts[nth][15] = 1;
        }
        let (firsts, heads, of_all) = (&mut firsts[..ivs.len()], &heads[..ivs.len()], &mut sums[..ivs.len()]);
        self.key.apply(direction, GcmRun { firsts, heads, head, sums: of_all }, data);
        sums
    }
}

impl<const W: usize> Aead<W> for AesGcm {
    fn seal(&self, run: Run, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>) {
        let sums = self.apply(CryptDirection::Encrypt, run, ivs, data);
        tags.set(&sums[..ivs.len()]);
    }

    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        mut data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> Result<(), BadSector> {
        let sums = self.apply(CryptDirection::Decrypt, run, ivs, data.reborrow());
        wipe_wrong(data.get_out(), tags, &sums[..ivs.len()])
    }
}
