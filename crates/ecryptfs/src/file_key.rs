//! A file's own key (FEK): what its header wraps and its contents are encrypted with.

use underseal_cipher::{CpuPath, Key};

use crate::{AuthToken, Cipher, Contents, Result, random};

/// A file's key and its cipher.
#[derive(Debug, PartialEq, Eq)]
pub struct FileKey {
    cipher: Cipher,
    key: Key,
}

impl FileKey {
    /// A new file's key.
    ///
    /// # Errors
    /// `Memory`, and `Io` when the kernel has no random bytes.
    pub fn random(cipher: Cipher) -> Result<Self> {
        let mut key = Key::zeroed(cipher.key_bytes())?;
        random::fill(key.as_mut_bytes())?;
        Ok(Self { cipher, key })
    }

    /// Its cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The cipher over the file's extents.
    ///
    /// # Errors
    /// `Memory`; `Unsupported` when `UNDERSEAL_CPU` names what this processor lacks.
    pub fn contents(&self) -> Result<Contents> {
        Contents::new(self.cipher, &self.key, None)
    }

    /// As [`FileKey::contents`], on a path of the processor that the caller picks.
    ///
    /// # Errors
    /// As there.
    pub fn contents_on(&self, cpu: CpuPath) -> Result<Contents> {
        Contents::new(self.cipher, &self.key, Some(cpu))
    }

    /// EFEK: the key, zero-padded to whole blocks, under the token's.
    pub(crate) fn wrap(&self, token: &AuthToken) -> Result<Vec<u8>> {
        let mut padded = Key::zeroed(self.cipher.wrapped_bytes())?;
        padded.as_mut_bytes()[..self.key.len()].copy_from_slice(self.key.as_bytes());
        token.blocks(self.cipher)?.encrypt(padded.as_mut_bytes());
        Ok(padded.as_bytes().to_vec())
    }

    /// The key that a token wrapped.
    pub(crate) fn unwrap(wrapped: &[u8], cipher: Cipher, token: &AuthToken) -> Result<Self> {
        let mut key = Key::new(wrapped)?;
        token.blocks(cipher)?.decrypt(key.as_mut_bytes());
        key.truncate(cipher.key_bytes());
        Ok(Self { cipher, key })
    }
}
