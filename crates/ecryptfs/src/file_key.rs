//! A file's own key (FEK), wrapped in its header; it encrypts the file's contents.

use underseal_cipher::{CpuPath, Key};

use crate::{AuthToken, Cipher, Contents, Result, random};

/// A file's key and its cipher.
#[derive(Debug, PartialEq, Eq)]
pub struct FileKey {
    cipher: Cipher,
    key: Key,
}

impl FileKey {
    /// Returns a new file's key.
    ///
    /// # Errors
    /// `Memory`; `Io` when the kernel has no random bytes.
    pub fn random(cipher: Cipher) -> Result<Self> {
        let mut key = Key::zeroed(cipher.key_bytes())?;
        random::fill(key.as_mut_bytes())?;
        Ok(Self { cipher, key })
    }

    /// Returns the key's cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns the cipher over the file's extents.
    ///
    /// # Errors
    /// `Memory`; `Unsupported` when `UNDERSEAL_CPU` names a feature that this processor lacks.
    pub fn contents(&self) -> Result<Contents> {
        Contents::new(self.cipher, &self.key, None)
    }

    /// Like [`FileKey::contents`], with the processor features that the caller chooses.
    ///
    /// # Errors
    /// The kinds of [`FileKey::contents`].
    pub fn contents_on(&self, cpu: CpuPath) -> Result<Contents> {
        Contents::new(self.cipher, &self.key, Some(cpu))
    }

    /// Returns the EFEK: the key, zero-padded to whole blocks, encrypted with the token's key.
    pub(crate) fn wrap(&self, token: &AuthToken) -> Result<Vec<u8>> {
        let mut padded = Key::zeroed(self.cipher.wrapped_bytes())?;
        padded.as_mut_bytes()[..self.key.len()].copy_from_slice(self.key.as_bytes());
        token.blocks(self.cipher)?.encrypt(padded.as_mut_bytes());
        Ok(padded.as_bytes().to_vec())
    }

    /// Returns the key wrapped by a token.
    pub(crate) fn unwrap(wrapped: &[u8], cipher: Cipher, token: &AuthToken) -> Result<Self> {
        let mut key = Key::new(wrapped)?;
        token.blocks(cipher)?.decrypt(key.as_mut_bytes());
        key.truncate(cipher.key_bytes());
        Ok(Self { cipher, key })
    }
}
