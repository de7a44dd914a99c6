//! Where there is no vector code: no key is ever made for it.

use std::marker::PhantomData;

use crate::{CpuPath, Result};

/// A cipher that another processor has kernels for.
pub(crate) trait Cipher: Send + Sync {}

pub(crate) enum Camellia {}
pub(crate) enum Aria {}
pub(crate) enum Sm4 {}

impl Cipher for Camellia {}
impl Cipher for Aria {}
impl Cipher for Sm4 {}

/// A key that cannot be.
pub(crate) struct Sliced<C> {
    never: std::convert::Infallible,
    of: PhantomData<C>,
}

impl<C: Cipher> Sliced<C> {
    pub(crate) fn new(_path: CpuPath, _key: &[u8]) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn encrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match self.never {}
    }

    pub(crate) fn decrypt_blocks(&self, _blocks: &mut [[u8; 16]]) {
        match self.never {}
    }
}
