//! `elephant`: BitLocker's CBC with the Elephant diffuser.
//!
//! The key's first half is CBC's, the second the sector key Ks (AES). With e = le64(S * sector
//! size) padded, ks = E_Ks(e), E_Ks(e with byte 15 = 0x80). Writing adds ks every 32 bytes, then
//! diffuses with A and B, then encrypts with [`eboiv`](super::Eboiv). Source: Ferguson, "AES-CBC +
//! Elephant diffuser", 2006, 4.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::{IvGenerator, Treatment, sectors};
use crate::SectorSize;
use crate::block::{AnyCipher, BlockCipher};
use crate::kernel::DiffuserLanes;
use crate::mode::ChainCipher;
use crate::sector::Run;

pub(crate) struct Elephant {
    /// AES with the key Ks.
    pub(crate) sector_key: AnyCipher<16>,
    pub(crate) iv: super::Eboiv<16>,
    pub(crate) size: SectorSize,
    /// Vector code for many sectors at once, where the processor can run it.
    pub(crate) lanes: Option<DiffuserLanes>,
}

/// A diffuser: its offsets, rotations and number of rounds.
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
        // Sectors have a power of two of words.
        let (n, mask) = (words.len(), words.len() - 1);
        let at =
            |offset| u32::from_le_bytes(words[if self.back { i + n - offset } else { i + offset } & mask]);
        at(self.offsets.0) ^ at(self.offsets.1).rotate_left(self.turns[i % 4])
    }

    /// Decrypts: the direction of the definition.
    fn undo(&self, words: &mut [Word]) {
        for _ in 0..self.rounds {
            for i in 0..words.len() {
                words[i] = u32::from_le_bytes(words[i]).wrapping_add(self.term(words, i)).to_le_bytes();
            }
        }
    }

    /// Encrypts: the inverse direction.
    fn apply(&self, words: &mut [Word]) {
        for _ in 0..self.rounds {
            for i in (0..words.len()).rev() {
                words[i] = u32::from_le_bytes(words[i]).wrapping_sub(self.term(words, i)).to_le_bytes();
            }
        }
    }
}

fn apply(sector: &mut [u8]) {
    let words = sector.as_chunks_mut().0;
    A.apply(words);
    B.apply(words);
}

fn undo(sector: &mut [u8]) {
    let words = sector.as_chunks_mut().0;
    B.undo(words);
    A.undo(words);
}

/// Sectors whose keys are made in one call.
const TOGETHER: usize = 32;

impl Elephant {
    /// Adds the sectors' keys.
    fn add_keys(&self, run: Run, data: &mut [u8], bytes: usize) {
        let mut keys = [[0; 16]; 2 * TOGETHER];
        for (group, data) in data.chunks_mut(bytes * TOGETHER).enumerate() {
            let count = data.len() / bytes;
            for (nth, pair) in keys.as_chunks_mut::<2>().0.iter_mut().take(count).enumerate() {
                let number = run.number(group * TOGETHER + nth);
                *pair = [[0; 16]; 2];
                for half in &mut *pair {
                    half[..8].copy_from_slice(&number.wrapping_mul(self.size.bytes() as u64).to_le_bytes());
                }
                pair[1][15] = 0x80;
            }
            self.sector_key.encrypt(&mut keys[..2 * count]);
            for (sector, key) in sectors(data, bytes).zip(keys.as_chunks::<2>().0) {
                let key = key.map(u128::from_ne_bytes);
                for pair in sector.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0 {
                    for (block, key) in pair.iter_mut().zip(key) {
                        *block = (u128::from_ne_bytes(*block) ^ key).to_ne_bytes();
                    }
                }
            }
        }
        keys.zeroize();
    }
}

impl Treatment<16> for Elephant {
    fn encrypt(
        &self,
        run: Run,
        ivs: &mut [[u8; 16]],
        mode: &dyn ChainCipher<16>,
        data: InOutBuf<'_, '_, u8>,
    ) {
        let bytes = data.len() / ivs.len();
        let out = data.into_out_with_copied_in();
        self.add_keys(run, out, bytes);
        match self.lanes.as_ref().filter(|lanes| lanes.takes(bytes)) {
            Some(lanes) => lanes.apply(out, bytes),
            None => sectors(out, bytes).for_each(apply),
        }
        self.iv.fill(run, ivs);
        mode.encrypt(ivs, out.into());
    }

    fn decrypt(
        &self,
        run: Run,
        ivs: &mut [[u8; 16]],
        mode: &dyn ChainCipher<16>,
        mut data: InOutBuf<'_, '_, u8>,
    ) {
        let bytes = data.len() / ivs.len();
        self.iv.fill(run, ivs);
        mode.decrypt(ivs, data.reborrow());
        let out = data.get_out();
        match self.lanes.as_ref().filter(|lanes| lanes.takes(bytes)) {
            Some(lanes) => lanes.undo(out, bytes),
            None => sectors(out, bytes).for_each(undo),
        }
        self.add_keys(run, out, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::CpuPath;

    proptest! {
        #[test]
        fn lanes_diffuse_what_words_diffuse(
            log in 9..13u32, count in 1usize..35, seed in prop::collection::vec(any::<u8>(), 997),
        ) {
            let bytes = 1usize << log;
            let data: Vec<u8> = seed.iter().copied().cycle().take(count * bytes).collect();
            let mut want = data.clone();
            sectors(&mut want, bytes).for_each(apply);
            for lanes in CpuPath::ALL.into_iter().filter_map(DiffuserLanes::of) {
                let mut got = data.clone();
                lanes.apply(&mut got, bytes);
                prop_assert!(got == want);
                lanes.undo(&mut got, bytes);
                prop_assert!(got == data);
            }
            sectors(&mut want, bytes).for_each(undo);
            prop_assert!(want == data);
        }
    }
}
