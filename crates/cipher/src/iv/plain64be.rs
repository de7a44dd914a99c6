//! `plain64be`: IV = be64(S) in the last 8 bytes, zeros before.

use super::IvGenerator;
use crate::sector::Run;

pub(crate) struct Plain64Be;

impl<const W: usize> IvGenerator<W> for Plain64Be {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        for (nth, iv) in ivs.iter_mut().enumerate() {
            *iv = [0; W];
            iv[W - 8..].copy_from_slice(&run.number(nth).to_be_bytes());
        }
    }
}
