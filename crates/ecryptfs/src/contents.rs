//! The contents of a file: extents of 4096 bytes.

use std::fmt;
use std::sync::Arc;

use underseal_cipher::{CpuPath, Key, SectorCipher, build_extents};

use crate::{Cipher, Result};

/// The size of an extent, the unit of encryption.
pub const EXTENT: usize = 4096;

/// A file's cipher over its extents: a whole request in one call. Threads may share it.
#[derive(Clone)]
pub struct Contents {
    cipher: Arc<dyn SectorCipher>,
}

impl Contents {
    pub(crate) fn new(cipher: Cipher, key: &Key, cpu: Option<CpuPath>) -> Result<Self> {
        Ok(Self { cipher: build_extents(cipher.name(), key, cpu)? })
    }

    /// Encrypts extents in place, the first of which is the file's extent `first`.
    ///
    /// # Panics
    /// When the data is not a whole number of extents.
    pub fn encrypt(&self, first: u64, data: &mut [u8]) {
        self.cipher.encrypt(sector(first), data.into());
    }

    /// Decrypts extents in place, the first of which is the file's extent `first`.
    ///
    /// # Panics
    /// When the data is not a whole number of extents.
    pub fn decrypt(&self, first: u64, data: &mut [u8]) {
        self.cipher.decrypt(sector(first), data.into());
    }
}

/// The cipher counts in 512-byte sectors. No file has an extent without a sector number.
fn sector(extent: u64) -> u64 {
    extent.wrapping_mul(8)
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents([redacted])")
    }
}
