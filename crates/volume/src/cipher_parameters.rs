//! A cipher without its key.

use std::sync::Arc;

use underseal_cipher::{
    BuildOptions, CipherSpec, Integrity, Key, SectorCipher, SectorSize, build, build_with,
};

use crate::{Error, ErrorKind, Result};

/// The parameters of a segment's cipher, without the key.
#[derive(Debug, Clone)]
pub struct CipherParameters {
    /// Cipher, chain mode and IV generator.
    pub cipher: CipherSpec,
    /// The size of the sectors.
    pub sector_size: SectorSize,
    /// IVs count sectors of that size.
    pub iv_large_sectors: bool,
    /// The key's length in bytes.
    pub key_size: usize,
    /// The tags or IVs beside sectors.
    pub integrity: Option<Integrity>,
}

impl CipherParameters {
    /// Returns the parameters of a cipher whose IVs count sectors of 512 bytes, under a key of
    /// `key_size` bytes.
    pub fn new(cipher: &CipherSpec, sector_size: SectorSize, key_size: usize) -> Self {
        Self { cipher: cipher.clone(), sector_size, iv_large_sectors: false, key_size, integrity: None }
    }

    /// Builds the cipher.
    ///
    /// # Errors
    /// `Unsupported` for a cipher that this build does not have; `BadHeader` for a key or sectors
    /// that the cipher refuses; `Memory`.
    pub fn build(&self, key: &Key) -> Result<Arc<dyn SectorCipher>> {
        let spec = &self.cipher;
        let built = match self.integrity {
            None if spec.is_null() => build(spec, key, self.sector_size),
            _ => build_with(&self.options(key)),
        };
        built.map_err(|e| cipher_error(spec, e))
    }

    /// Returns the options that the cipher is built with.
    pub(crate) fn options<'a>(&'a self, key: &'a Key) -> BuildOptions<'a> {
        let Self { cipher: spec, sector_size, iv_large_sectors, integrity, .. } = self;
        let (sector_size, iv_large_sectors, integrity) = (*sector_size, *iv_large_sectors, *integrity);
        BuildOptions { spec, key, sector_size, iv_large_sectors, integrity, cpu: None }
    }
}

/// Returns the cipher that changes nothing.
pub(crate) fn null(sector_size: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    let spec: CipherSpec = "cipher_null-ecb".parse().expect("a constant that parses");
    let none = Key::zeroed(0).map_err(|e| cipher_error(&spec, e))?;
    CipherParameters::new(&spec, sector_size, 0).build(&none)
}

/// Converts a cipher's error to this crate's error.
pub(crate) fn cipher_error(spec: &CipherSpec, e: underseal_cipher::Error) -> Error {
    use underseal_cipher::ErrorKind as Cipher;
    let kind = match e.kind() {
        Cipher::Unsupported | Cipher::BadSpec => ErrorKind::Unsupported,
        Cipher::Memory => ErrorKind::Memory,
        _ => ErrorKind::BadHeader,
    };
    Error::new(kind, format!("cannot use cipher {spec}")).with_source(e)
}
