//! Where there is no vector code: the library's streams.

use cipher::inout::InOutBuf;

use crate::CpuPath;

/// Sectors whose subkeys are made together.
pub(crate) const SUBKEYS: usize = 8;

/// Vectors that there are not.
#[derive(Clone, Copy)]
pub(crate) enum ChaChaLanes {}

impl ChaChaLanes {
    pub(crate) fn of(_path: CpuPath, _double_rounds: usize) -> Option<Self> {
        None
    }

    pub(crate) fn add(&self, _key: &[u8; 32], _words: &[u8; 16], _data: InOutBuf<'_, '_, u8>) {
        match *self {}
    }

    pub(crate) fn subkeys(
        &self,
        _key: &[u8; 32],
        _inputs: &[[u8; 16]; SUBKEYS],
        _subkeys: &mut [[u8; 32]; SUBKEYS],
    ) {
        match *self {}
    }
}
