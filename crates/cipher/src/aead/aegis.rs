//! `aegis128` (Wu, Preneel, "AEGIS: A Fast Authenticated Encryption Algorithm", v1.1): five blocks
//! of state, to each of which every 16 bytes of data add one AES round.
//!
//! The rounds of one sector wait for each other, so the vector code has a sector in each lane.

use aes::Block;
use aes::hazmat::cipher_round;
use cipher::inout::InOutBuf;

use super::{Aead, Associated, MANY, Tags, TagsMut, sectors, wipe_wrong};
use crate::block::{blocks, xor};
use crate::kernel::{AegisKey, AegisRun, CryptDirection};
use crate::sector::Run;
use crate::{BadSector, CpuPath, Key, Result};

pub(crate) enum Aegis {
    Kernel(AegisKey),
    /// Sector by sector, with the library's AES round.
    Portable(Key),
}

impl Aegis {
    /// Takes a key of 16 bytes. Returns `Memory` when it cannot be placed on locked pages.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Self> {
        Ok(match AegisKey::new(path, key)? {
            Some(kernel) => Self::Kernel(kernel),
            None => Self::Portable(Key::new(key)?),
        })
    }

    /// Encrypts or decrypts the sectors, and returns their whole tags.
    fn apply(
        &self,
        direction: CryptDirection,
        run: Run,
        ivs: &[[u8; 16]],
        data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; MANY] {
        let (mut heads, mut sums) = ([[0; 32]; MANY], [[0; 16]; MANY]);
        for (nth, (head, iv)) in heads.iter_mut().zip(ivs).enumerate() {
            head[..24].copy_from_slice(Associated::of(run, nth, iv).first(24));
        }
        let heads = &heads[..ivs.len()];
        match self {
            Self::Kernel(key) => {
                key.apply(direction, AegisRun { ivs, heads, sums: &mut sums[..ivs.len()] }, data);
            }
            Self::Portable(key) => {
                let all = sums.iter_mut().zip(heads).zip(ivs).zip(sectors(data, ivs.len()));
                for (((sum, head), iv), sector) in all {
                    *sum = one(direction, key, iv, head, sector);
                }
            }
        }
        sums
    }
}

impl Aead<16> for Aegis {
    fn seal(&self, run: Run, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>) {
        let sums = self.apply(CryptDirection::Encrypt, run, ivs, data);
        tags.set(&sums[..ivs.len()]);
    }

    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; 16]],
        mut data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> std::result::Result<(), BadSector> {
        let sums = self.apply(CryptDirection::Decrypt, run, ivs, data.reborrow());
        wipe_wrong(data.get_out(), tags, &sums[..ivs.len()])
    }
}

struct State([[u8; 16]; 5]);

impl State {
    fn update(&mut self, block: &[u8; 16]) {
        let [s0, s1, s2, s3, s4] = self.0;
        self.0 =
            [round(s4, &xor(&s0, block)), round(s0, &s1), round(s1, &s2), round(s2, &s3), round(s3, &s4)];
    }

    /// The key stream of the next block.
    fn stream(&self) -> [u8; 16] {
        let [_, s1, s2, s3, s4] = &self.0;
        let mut both = *s2;
        both.iter_mut().zip(s3).for_each(|(a, b)| *a &= b);
        xor(&xor(s1, s4), &both)
    }
}

fn round(block: [u8; 16], key: &[u8; 16]) -> [u8; 16] {
    let mut block = Block::from(block);
    cipher_round(&mut block, key.into());
    block.into()
}

fn one(
    direction: CryptDirection,
    key: &Key,
    iv: &[u8; 16],
    head: &[u8; 32],
    data: InOutBuf<'_, '_, u8>,
) -> [u8; 16] {
    let mut k = [0; 16];
    k.copy_from_slice(key.as_bytes());
    let keyed = xor(&k, iv);
    let [const0, const1] = crate::kernel::AEGIS_CONSTANTS;
    let mut state = State([keyed, const1, const0, xor(&k, &const0), xor(&k, &const1)]);
    for _ in 0..5 {
        state.update(&k);
        state.update(&keyed);
    }
    for block in head.as_chunks::<16>().0 {
        state.update(block);
    }
    let bits = data.len() as u64 * 8;
    for mut block in blocks::<16>(data) {
        let (from, stream) = (*block.get_in(), state.stream());
        let to = xor(&from, &stream);
        state.update(if direction == CryptDirection::Encrypt { &from } else { &to });
        *block.get_out() = to;
    }
    let mut lengths = [0; 16];
    lengths[..8].copy_from_slice(&(24 * 8u64).to_le_bytes());
    lengths[8..].copy_from_slice(&bits.to_le_bytes());
    let last = xor(&lengths, &state.0[3]);
    for _ in 0..7 {
        state.update(&last);
    }
    state.0.iter().fold([0; 16], |sum, block| xor(&sum, block))
}
