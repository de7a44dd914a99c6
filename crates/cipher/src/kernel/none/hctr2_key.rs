//! Where there is no vector code: no key is ever made for it.

use cipher::inout::InOutBuf;

use super::Direction;
use crate::{CpuPath, Result};

/// A key that cannot be.
pub(crate) enum Hctr2Key {}

impl Hctr2Key {
    pub(crate) fn new(_path: CpuPath, _key: &[u8]) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn apply(&self, _direction: Direction, _tweaks: &[[u8; 32]], _data: InOutBuf<'_, '_, u8>) {
        match *self {}
    }
}
