//! Where there is no vector code: no key is ever made for it.

use crate::{CpuPath, Result};

/// A key that cannot be.
pub(crate) enum SerpentKey {}

impl SerpentKey {
    pub(crate) fn new(_path: CpuPath, _key: &[u8]) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn encrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }

    pub(crate) fn decrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }
}
