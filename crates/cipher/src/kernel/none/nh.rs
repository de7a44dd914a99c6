//! Where there is no vector code: NH a word at a time.

use crate::CpuPath;
use crate::mode::{NH_PASSES, NhKey};

/// Vectors that there are not.
#[derive(Clone, Copy)]
pub(crate) enum NhLanes {}

impl NhLanes {
    pub(crate) fn of(_path: CpuPath) -> Option<Self> {
        None
    }

    pub(crate) fn piece(&self, _key: &NhKey, _piece: &[u8]) -> [u64; NH_PASSES] {
        match *self {}
    }
}
