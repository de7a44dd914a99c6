//! Where there is no vector code: messages one by one.

use crate::CpuPath;

/// Vectors that there are not.
pub(crate) enum Sha256Lanes {}

impl Sha256Lanes {
    pub(crate) fn of(_path: CpuPath) -> Option<Self> {
        None
    }

    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        Vec::new()
    }

    pub(crate) fn hmac<'a>(
        &self,
        _states: &[[u32; 8]; 2],
        _count: usize,
        _message: impl Fn(usize) -> (&'a [u8], &'a [u8]),
        _sums: &mut [[u8; 64]],
    ) -> usize {
        match *self {}
    }
}
