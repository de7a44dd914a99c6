//! Where there is no vector code: sectors one by one.

use crate::CpuPath;

/// Vectors that there are not.
#[derive(Clone, Copy)]
pub(crate) enum DiffuserLanes {}

impl DiffuserLanes {
    pub(crate) fn of(_path: CpuPath) -> Option<Self> {
        None
    }

    pub(crate) fn takes(&self, _bytes: usize) -> bool {
        match *self {}
    }

    pub(crate) fn apply(&self, _data: &mut [u8], _bytes: usize) {
        match *self {}
    }

    pub(crate) fn undo(&self, _data: &mut [u8], _bytes: usize) {
        match *self {}
    }
}
