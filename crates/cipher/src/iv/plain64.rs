//! `plain64`: IV = le64(S), zero-padded.

use super::IvGenerator;
use crate::sector::Run;

pub(crate) struct Plain64;

impl<const W: usize> IvGenerator<W> for Plain64 {
    #[inline]
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            *iv = [0; W];
            iv[..8].copy_from_slice(&run.number(nth).to_le_bytes());
        }
    }
}
