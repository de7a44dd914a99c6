//! `plain`: IV = le32(S), zero-padded. Repeats every 2^32 sectors.

use super::IvGenerator;
use crate::sector::Run;

pub(crate) struct Plain;

impl<const W: usize> IvGenerator<W> for Plain {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            *iv = [0; W];
            iv[..4].copy_from_slice(&run.number(nth).to_le_bytes()[..4]);
        }
    }
}
