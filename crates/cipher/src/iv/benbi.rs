//! `benbi`: IV = be64((S << (9 - log2(block size))) + 1) in the last 8 bytes: the number of the
//! sector's first cipher block, counted from one. Made for LRW.

use super::IvGenerator;
use crate::sector::Run;

pub(crate) struct Benbi {
    /// 9 - log2(block size); stream ciphers and `ctr` count single bytes.
    pub(crate) shift: u32,
}

impl<const W: usize> IvGenerator<W> for Benbi {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            *iv = [0; W];
            iv[W - 8..].copy_from_slice(&(run.number(nth) << self.shift).wrapping_add(1).to_be_bytes());
        }
    }
}
