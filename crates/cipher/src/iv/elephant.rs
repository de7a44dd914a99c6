//! `elephant`: BitLocker's CBC with the Elephant diffuser.
//!
//! The key's first half is CBC's, the second the sector key Ks (AES). With e = le64(S * sector size) padded,
//! ks = E_Ks(e), E_Ks(e with byte 15 = 0x80). Writing adds ks every 32 bytes, then diffuses with A and B, then encrypts
//! with [`eboiv`](super::Eboiv). Source: Ferguson, "AES-CBC + Elephant diffuser", 2006, 4.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::{IvGenerator, Treatment, sectors};
use crate::SectorSize;
use crate::block::AnyCipher;
use crate::mode::Mode;
use crate::sector::Run;

pub(crate) struct Elephant {
    /// AES under Ks.
    pub(crate) sector_key: AnyCipher<16>,
    pub(crate) iv: super::Eboiv<16>,
    pub(crate) size: SectorSize,
}

/// One of the two diffusers: where it looks, how it turns, how often it goes round.
struct Diffuser {
    /// Distances in words, from the end of the sector where they wrap.
    offsets: (usize, usize),
    back: bool,
    turns: [u32; 4],
    rounds: usize,
}

const A: Diffuser = Diffuser { offsets: (2, 5), back: true, turns: [9, 0, 13, 0], rounds: 5 };
const B: Diffuser = Diffuser { offsets: (2, 5), back: false, turns: [0, 10, 0, 25], rounds: 3 };

/// A little-endian word.
type Word = [u8; 4];

impl Diffuser {
    fn term(&self, words: &[Word], i: usize) -> u32 {
        let n = words.len();
        let at = |offset| u32::from_le_bytes(words[if self.back { i + n - offset } else { i + offset } % n]);
        at(self.offsets.0) ^ at(self.offsets.1).rotate_left(self.turns[i % 4])
    }

    /// The direction of the definition: reading.
    fn undo(&self, words: &mut [Word]) {
        for _ in 0..self.rounds {
            for i in 0..words.len() {
                words[i] = u32::from_le_bytes(words[i]).wrapping_add(self.term(words, i)).to_le_bytes();
            }
        }
    }

    /// Its inverse: writing.
    fn apply(&self, words: &mut [Word]) {
        for _ in 0..self.rounds {
            for i in (0..words.len()).rev() {
                words[i] = u32::from_le_bytes(words[i]).wrapping_sub(self.term(words, i)).to_le_bytes();
            }
        }
    }
}

impl Elephant {
    fn add_key(&self, number: u64, sector: &mut [u8]) {
        let mut key = [[0; 16]; 2];
        for half in &mut key {
            half[..8].copy_from_slice(&number.wrapping_mul(self.size.bytes() as u64).to_le_bytes());
        }
        key[1][15] = 0x80;
        self.sector_key.encrypt(&mut key);
        for chunk in sector.as_chunks_mut::<32>().0 {
            for (byte, key) in chunk.iter_mut().zip(key.as_flattened()) {
                *byte ^= key;
            }
        }
        key.zeroize();
    }
}

impl Treatment<16> for Elephant {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; 16]], mode: &dyn Mode<16>, data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        let out = data.into_out_with_copied_in();
        for (nth, sector) in sectors(out, bytes).enumerate() {
            self.add_key(run.number(nth), sector);
            let words = sector.as_chunks_mut().0;
            A.apply(words);
            B.apply(words);
        }
        self.iv.fill(run, ivs);
        mode.encrypt(ivs, out.into());
    }

    fn decrypt(&self, run: Run, ivs: &mut [[u8; 16]], mode: &dyn Mode<16>, mut data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        self.iv.fill(run, ivs);
        mode.decrypt(ivs, data.reborrow());
        for (nth, sector) in sectors(data.get_out(), bytes).enumerate() {
            let words = sector.as_chunks_mut().0;
            B.undo(words);
            A.undo(words);
            self.add_key(run.number(nth), sector);
        }
    }
}
