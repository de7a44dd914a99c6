//! Where there is no vector code: no key is ever made for it.

use cipher::inout::InOutBuf;

use super::Direction;
use crate::sector::Run;
use crate::{CpuPath, Result};

/// A key that cannot be.
pub(crate) enum AesKey {}

impl AesKey {
    pub(crate) fn new(_path: CpuPath, _key: &[u8]) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn encrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }

    pub(crate) fn encrypt_blocks_untidied(&self, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }

    pub(crate) fn decrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }

    pub(crate) fn encrypt_numbers(&self, _run: Run, _blocks: &mut [[u8; 16]]) {
        match *self {}
    }

    pub(crate) fn xts(&self, _direction: Direction, _tweaks: &[[u8; 16]], _data: InOutBuf<'_, '_, u8>) {
        match *self {}
    }

    pub(crate) fn cbc(&self, _direction: Direction, _ivs: &[[u8; 16]], _data: InOutBuf<'_, '_, u8>) {
        match *self {}
    }
}
