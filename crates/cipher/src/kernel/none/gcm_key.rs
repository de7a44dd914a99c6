//! Where there is no vector code: no key is ever made for it.

use cipher::inout::InOutBuf;

use super::{Direction, GcmRun};
use crate::{CpuPath, Result};

/// A key that cannot be.
pub(crate) enum GcmKey {}

impl GcmKey {
    pub(crate) fn new(_path: CpuPath, _key: &[u8]) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn apply(&self, _direction: Direction, _run: GcmRun<'_>, _data: InOutBuf<'_, '_, u8>) {
        match *self {}
    }
}
