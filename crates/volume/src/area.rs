//! A keyslot's area on disk: a split key, encrypted in 512-byte sectors whose IVs count from 0.

use std::sync::Arc;

use underseal_cipher::{CipherSpec, InOutBuf, Key, SectorCipher, SectorSize};

use crate::{CipherParameters, Hash, ReadAt, Result, af, storage};

/// The cipher and hash of a keyslot's area.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyArea<'a> {
    pub(crate) spec: &'a CipherSpec,
    pub(crate) hash: Hash,
}

impl KeyArea<'_> {
    /// Reads the key of `len` bytes from the area at `offset`; a wrong `wrapping` key yields a
    /// wrong key.
    pub(crate) fn read(
        &self,
        from: &(impl ReadAt + ?Sized),
        offset: u64,
        wrapping: &Key,
        len: usize,
    ) -> Result<Key> {
        let cipher = self.cipher(wrapping)?;
        let mut stripes = crate::kdf::new_key(af::split_len(len))?;
        storage::read_into(from, offset, stripes.as_mut_bytes())?;
        cipher.decrypt(0, InOutBuf::from(stripes.as_mut_bytes()));
        af::merge(stripes.as_bytes(), len, self.hash)
    }

    /// Returns the area's bytes: `key`, split and encrypted.
    pub(crate) fn seal(&self, wrapping: &Key, key: &Key) -> Result<Key> {
        let cipher = self.cipher(wrapping)?;
        let mut stripes = af::split(key, self.hash)?;
        cipher.encrypt(0, InOutBuf::from(stripes.as_mut_bytes()));
        Ok(stripes)
    }

    fn cipher(&self, key: &Key) -> Result<Arc<dyn SectorCipher>> {
        CipherParameters::new(self.spec, SectorSize::S512, key.len()).build(key)
    }
}
