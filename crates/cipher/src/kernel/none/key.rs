//! Where there is no vector code: no key is ever made for it.

use cipher::inout::InOutBuf;

use super::Direction;
use crate::sector::Run;
use crate::{CpuPath, Result};

/// Nothing runs beside anything.
#[derive(Clone, Copy)]
pub(crate) enum BesideMd5 {}

pub(crate) struct Hashed<'a> {
    pub(crate) state: &'a [u32; 4],
    pub(crate) sectors: &'a [u8],
    pub(crate) ends: &'a [[u32; 2]],
}

impl BesideMd5 {
    pub(crate) const SPILLED: usize = 0;

    pub(crate) fn decrypt(
        self,
        _keys: &[&AesKey; 32],
        _hashed: &Hashed<'_>,
        _data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; 32] {
        match self {}
    }

    pub(crate) fn encrypt(
        self,
        _key: &AesKey,
        _ivs: &[[u8; 16]; 32],
        _hashed: &Hashed<'_>,
        _data: InOutBuf<'_, '_, u8>,
    ) -> [[u8; 16]; 32] {
        match self {}
    }
}

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

    pub(crate) fn beside_md5(&self) -> Option<BesideMd5> {
        match *self {}
    }
}
