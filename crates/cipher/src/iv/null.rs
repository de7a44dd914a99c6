//! `null`: IV = 0. Equal sectors have equal ciphertexts.

use super::IvGenerator;
use crate::sector::Run;

pub(crate) struct NullIv;

impl<const W: usize> IvGenerator<W> for NullIv {
    fn fill(&self, _run: Run, ivs: &mut [[u8; W]]) {
        ivs.fill([0; W]);
    }
}
