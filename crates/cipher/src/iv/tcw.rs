//! `tcw`: TrueCrypt before 4.1, CBC with whitening.
//!
//! The key is the cipher's, then the IV seed (an IV's width), then 16 bytes of whitening. IV = seed ^ le64(S) repeated.
//! Whitening: the 16 bytes ^ (le64(S) twice); each 32-bit word through CRC-32 (init 0, no final xor); w0 ^= w3,
//! w1 ^= w2; these 8 bytes are added over the whole ciphertext.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::{IvGenerator, Treatment, sectors};
use crate::mode::Mode;
use crate::sector::Run;
use crate::{Locked, Result};

pub(crate) struct Tcw<const W: usize> {
    secret: Locked<Secret<W>>,
}

struct Secret<const W: usize> {
    seed: [u8; W],
    whitening: [u8; 16],
}

impl<const W: usize> Tcw<W> {
    /// From the last W + 16 bytes of the key.
    pub(crate) fn new(extra: &[u8]) -> Result<Self> {
        let mut secret = Locked::new(Secret { seed: [0; W], whitening: [0; 16] })?;
        let (seed, whitening) = extra.split_at(W);
        secret.seed.copy_from_slice(seed);
        secret.whitening.copy_from_slice(whitening);
        Ok(Self { secret })
    }

    fn whiten(&self, number: u64, sector: &mut [u8]) {
        let mut words = self.secret.whitening;
        xor_repeated(&mut words, number);
        for word in words.chunks_exact_mut(4) {
            // crc32fast complements at both ends; this takes both back.
            let mut crc = crc32fast::Hasher::new_with_initial(u32::MAX);
            crc.update(word);
            word.copy_from_slice(&(!crc.finalize()).to_le_bytes());
        }
        for i in 0..4 {
            words[i] ^= words[12 + i];
            words[4 + i] ^= words[8 + i];
        }
        for chunk in sector.as_chunks_mut::<8>().0 {
            for (byte, white) in chunk.iter_mut().zip(&words[..8]) {
                *byte ^= white;
            }
        }
        words.zeroize();
    }
}

fn xor_repeated(bytes: &mut [u8], number: u64) {
    for (byte, number) in bytes.iter_mut().zip(number.to_le_bytes().into_iter().cycle()) {
        *byte ^= number;
    }
}

impl<const W: usize> IvGenerator<W> for Tcw<W> {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            *iv = self.secret.seed;
            xor_repeated(iv, run.number(nth));
        }
    }
}

impl<const W: usize> Treatment<W> for Tcw<W> {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, mut data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        self.fill(run, ivs);
        mode.encrypt(ivs, data.reborrow());
        for (nth, sector) in sectors(data.get_out(), bytes).enumerate() {
            self.whiten(run.number(nth), sector);
        }
    }

    fn decrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn Mode<W>, data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        let out = data.into_out_with_copied_in();
        for (nth, sector) in sectors(out, bytes).enumerate() {
            self.whiten(run.number(nth), sector);
        }
        self.fill(run, ivs);
        mode.decrypt(ivs, out.into());
    }
}
