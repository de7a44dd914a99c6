//! `tcw`: TrueCrypt before 4.1, CBC with whitening.
//!
//! The key is the cipher's, then the IV seed (an IV's width), then 16 bytes of whitening. IV = seed
//! ^ le64(S) repeated. Whitening: the 16 bytes ^ (le64(S) twice); each 32-bit word through CRC-32
//! (init 0, no final xor); w0 ^= w3, w1 ^= w2; these 8 bytes are added over the whole ciphertext.
//!
//! A CRC without initial value of a sum is the sum of the CRCs. So the CRCs of the key's words are
//! made once, and a sector's number adds the CRC of its two halves' sum to both words.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::{IvGenerator, Treatment, sectors};
use crate::kernel::Whiten;
use crate::mode::ChainCipher;
use crate::sector::Run;
use crate::{CpuPath, Locked, Result};

pub(crate) struct Tcw<const W: usize> {
    secret: Locked<Secret<W>>,
    whiten: Whiten,
}

struct Secret<const W: usize> {
    seed: [u8; W],
    /// The 8 bytes of whitening for sector 0.
    whitening: u64,
}

impl<const W: usize> Tcw<W> {
    /// Takes the last W + 16 bytes of the key.
    pub(crate) fn new(extra: &[u8], path: CpuPath) -> Result<Self> {
        let mut secret = Locked::new(Secret { seed: [0; W], whitening: 0 })?;
        let (seed, whitening) = extra.split_at(W);
        secret.seed.copy_from_slice(seed);
        let mut crcs = [0; 4];
        for (crc, bytes) in crcs.iter_mut().zip(whitening.as_chunks::<4>().0) {
            *crc = crc32(u32::from_le_bytes(*bytes));
        }
        secret.whitening = twice(crcs[0] ^ crcs[3], crcs[1] ^ crcs[2]);
        crcs.zeroize();
        Ok(Self { secret, whiten: Whiten::of(path) })
    }

    fn whiten(&self, number: u64, sector: &mut [u8]) {
        let halves = (number ^ number >> 32) & u64::from(u32::MAX);
        let mut crc = 0;
        for (nth, of) in NIBBLES.iter().enumerate() {
            crc ^= of[(halves >> (4 * nth) & 15) as usize];
        }
        let white = self.secret.whitening ^ twice(crc, crc);
        self.whiten.add(sector, white.to_le_bytes());
    }
}

fn twice(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// CRC-32 of a little-endian word, without the usual complements at both ends. Its time does not
/// depend on the word.
const fn crc32(mut word: u32) -> u32 {
    let mut bit = 0;
    while bit < 32 {
        word = (word >> 1) ^ (0xedb8_8320 & (word & 1).wrapping_neg());
        bit += 1;
    }
    word
}

/// The CRCs of words of one nibble. They are looked up by sector numbers, which are no secret.
const NIBBLES: [[u32; 16]; 8] = {
    let mut crcs = [[0; 16]; 8];
    let mut nth = 0;
    while nth < 8 {
        let (mut at, mut value) = (0, 0);
        while at < 16 {
            crcs[nth][at] = crc32(value << (4 * nth));
            (at, value) = (at + 1, value + 1);
        }
        nth += 1;
    }
    crcs
};

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
    fn encrypt(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        mode: &dyn ChainCipher<W>,
        mut data: InOutBuf<'_, '_, u8>,
    ) {
        let bytes = data.len() / ivs.len();
        self.fill(run, ivs);
        mode.encrypt(ivs, data.reborrow());
        for (nth, sector) in sectors(data.get_out(), bytes).enumerate() {
            self.whiten(run.number(nth), sector);
        }
    }

    fn decrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn ChainCipher<W>, data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        let out = data.into_out_with_copied_in();
        for (nth, sector) in sectors(out, bytes).enumerate() {
            self.whiten(run.number(nth), sector);
        }
        self.fill(run, ivs);
        mode.decrypt(ivs, out.into());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whitening_is_that_of_a_library_word_by_word(key in any::<[u8; 16]>(), number in any::<u64>()) {
            let mut extra = [0; 32];
            extra[16..].copy_from_slice(&key);
            let mut sector = [0; 512];
            let tcw = Tcw::<16>::new(&extra, CpuPath::chosen().unwrap()).unwrap();
            tcw.whiten(number, &mut sector);
            let mut words = key;
            xor_repeated(&mut words, number);
            for word in words.chunks_exact_mut(4) {
                // crc32fast complements at both ends; this code reverses both complements.
                let mut crc = crc32fast::Hasher::new_with_initial(u32::MAX);
                crc.update(word);
                word.copy_from_slice(&(!crc.finalize()).to_le_bytes());
            }
            let want: [u8; 8] = std::array::from_fn(|i| words[i] ^ words[if i < 4 { 12 + i } else { 4 + i }]);
            prop_assert!(sector.chunks_exact(8).all(|chunk| chunk == want));
        }
    }
}
