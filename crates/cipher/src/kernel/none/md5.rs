//! Where there is no vector code: sectors one by one.

use crate::CpuPath;

/// Vectors that there are not.
#[derive(Clone, Copy)]
pub(crate) enum Md5Lanes {}

impl Md5Lanes {
    pub(crate) fn of(_path: CpuPath) -> Option<Self> {
        None
    }

    pub(crate) fn sectors(
        &self,
        _state: &[u32; 4],
        _sectors: &[u8],
        _ends: &[[u32; 2]],
        _states: &mut [[u8; 16]],
    ) {
        match *self {}
    }
}
