//! Names of files and targets of symlinks (tag 70).
//!
//! ```text
//!   "ECRYPTFS_FNEK_ENCRYPTED." base64(
//!       46  length  signature[8]  cipher  ECB( padding  0  name ) )
//!                                              at least 16 bytes
//! ```
//! padding = MD5(FNEK), MD5(MD5(FNEK)), .., with 0x42 for each 0; its length completes whole
//! blocks. So a name has one encrypted form, and a damaged name is noticed by its padding.
//! padding.

mod base64;
pub(crate) mod long;
mod packed;

use std::fmt;
use std::sync::Arc;

use md5::{Digest, Md5};
use underseal_cipher::{EcbCipher, Locked};
use zeroize::Zeroizing;

use crate::{AuthToken, Cipher, Error, ErrorKind, Result, Signature};
pub use long::LowerName;
use packed::Packed;

/// The prefix of encrypted names.
pub const PREFIX: &[u8] = b"ECRYPTFS_FNEK_ENCRYPTED.";

/// Returns true when a lower name or target has the prefix of encrypted names.
pub fn is_encoded(lower: &[u8]) -> bool {
    lower.starts_with(PREFIX)
}

/// Returns the signature of the key of a lower name or target.
///
/// # Errors
/// `BadName` for a damaged name.
pub fn signature(lower: &[u8]) -> Result<Signature> {
    Ok(Packed::decode(lower)?.signature)
}

/// The encryption of names and symlink targets.
pub struct NameCipher {
    token: Arc<AuthToken>,
    cipher: Cipher,
    blocks: EcbCipher,
    padding: Locked<[u8; PADDING]>,
}

/// The smallest number of bytes in front of a name: padding and a zero.
const BEFORE: usize = 17;
/// The largest padding for any block size.
const PADDING: usize = BEFORE - 1 + 15;
/// The length of the longest symlink target: Linux's limit for a path.
const MAX_TARGET: usize = 4095;
/// The length of the longest lower target that is parsed, with some room to spare.
const MAX_LOWER_TARGET: usize = 8192;

impl NameCipher {
    /// The length of the longest name. The encrypted form of a longer name exceeds the limit of
    /// lower file systems.
    pub const MAX_NAME: usize = 143;
    /// The length of the longest lower name.
    pub const MAX_LOWER: usize = 255;

    /// Returns a token's cipher for names.
    ///
    /// # Errors
    /// `Memory`; `Unsupported` when `UNDERSEAL_CPU` names a feature that this processor lacks.
    pub fn new(token: Arc<AuthToken>, cipher: Cipher) -> Result<Self> {
        let blocks = token.blocks(cipher)?;
        let mut padding = Locked::new([0; PADDING])?;
        let mut digest = Zeroizing::new(<[u8; 16]>::from(Md5::digest(token.key())));
        for part in padding.chunks_mut(16) {
            part.copy_from_slice(&digest[..part.len()]);
            *digest = Md5::digest(*digest).into();
        }
        padding.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0x42);
        Ok(Self { token, cipher, blocks, padding })
    }

    /// Returns the cipher for names like this name, whose packet does not contain its key's size.
    /// The padding decides the size.
    ///
    /// # Errors
    /// The kinds of [`NameCipher::decode`].
    pub fn like(lower: &[u8], token: &Arc<AuthToken>, likely: Cipher) -> Result<Self> {
        let mut refused = None;
        for cipher in Cipher::of_name(Packed::decode(lower)?.code, likely)? {
            let names = Self::new(token.clone(), cipher)?;
            match names.open(lower) {
                Ok(_) => return Ok(names),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| bad("it has no cipher")))
    }

    /// Returns true when the name has this key and cipher.
    pub(crate) fn opens(&self, lower: &[u8]) -> bool {
        self.open(lower).is_ok()
    }

    /// Returns the token that names are encrypted for.
    pub fn token(&self) -> &Arc<AuthToken> {
        &self.token
    }

    /// Returns the cipher of names.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns a name's lower form.
    ///
    /// # Errors
    /// `NameTooLong`; `BadName` for bytes that are no name.
    pub fn encode(&self, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        if name.len() > Self::MAX_NAME {
            let context =
                format!("a name of {} bytes: encrypted names have {} at most", name.len(), Self::MAX_NAME);
            return Err(Error::new(ErrorKind::NameTooLong, context));
        }
        self.seal(name)
    }

    /// Returns the name of a lower name.
    ///
    /// # Errors
    /// `BadName` for a lower name that is not encrypted or damaged, or that would give no name;
    /// `NoKey` for a lower name under another key.
    pub fn decode(&self, lower: &[u8]) -> Result<Vec<u8>> {
        let name = self.open(lower)?;
        check_name(&name)?;
        Ok(name)
    }

    /// Returns a symlink target's lower form.
    ///
    /// # Errors
    /// `NameTooLong`; `BadName` for bytes that are no target.
    pub fn encode_target(&self, target: &[u8]) -> Result<Vec<u8>> {
        check_target(target)?;
        if target.len() > MAX_TARGET {
            let context = format!("a symlink target of {} bytes: Linux takes {MAX_TARGET}", target.len());
            return Err(Error::new(ErrorKind::NameTooLong, context));
        }
        self.seal(target)
    }

    /// Returns the symlink target of a lower target.
    ///
    /// # Errors
    /// The kinds of [`NameCipher::decode`].
    pub fn decode_target(&self, lower: &[u8]) -> Result<Vec<u8>> {
        let target = self.open(lower)?;
        check_target(&target)?;
        Ok(target)
    }

    fn seal(&self, name: &[u8]) -> Result<Vec<u8>> {
        let bytes = (BEFORE + name.len()).next_multiple_of(self.cipher.block_bytes());
        let before = bytes - name.len();
        let mut sealed = Vec::with_capacity(bytes);
        sealed.extend_from_slice(&self.padding[..before - 1]);
        sealed.push(0);
        sealed.extend_from_slice(name);
        self.blocks.encrypt(&mut sealed);
        Ok(Packed { signature: self.token.signature(), code: self.cipher.code(), sealed }.encode())
    }

    fn open(&self, lower: &[u8]) -> Result<Vec<u8>> {
        if lower.len() > MAX_LOWER_TARGET {
            return Err(bad(format!("it has {} bytes", lower.len())));
        }
        let Packed { signature, code, mut sealed } = Packed::decode(lower)?;
        if signature != self.token.signature() {
            return Err(no_key(signature));
        }
        let [cipher, ..] = Cipher::of_name(code, self.cipher)?[..] else {
            return Err(bad(format!("no cipher has the code {code}")));
        };
        let other = if cipher == self.cipher { None } else { Some(self.token.blocks(cipher)?) };
        let blocks = other.as_ref().unwrap_or(&self.blocks);
        if sealed.is_empty() || !sealed.len().is_multiple_of(blocks.size()) {
            return Err(bad(format!("{} bytes are no whole blocks of {}", sealed.len(), cipher.name())));
        }
        blocks.decrypt(&mut sealed);
        let before = sealed.iter().position(|&byte| byte == 0).map_or(0, |zero| zero + 1);
        let name = &sealed[before..];
        let whole = (BEFORE + name.len()).next_multiple_of(blocks.size());
        if before < BEFORE || whole != sealed.len() || sealed[..before - 1] != self.padding[..before - 1] {
            return Err(bad("its padding is not this key's"));
        }
        Ok(name.to_vec())
    }
}

impl fmt::Debug for NameCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameCipher({}, {:?})", self.token.signature(), self.cipher)
    }
}

/// So that no decrypted name leads to another folder.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| [0, b'/'].contains(byte)) {
        return Err(Error::new(ErrorKind::BadName, "it is no name of a file"));
    }
    Ok(())
}

fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() || target.contains(&0) {
        return Err(Error::new(ErrorKind::BadName, "it is no target of a symlink"));
    }
    Ok(())
}

pub(crate) fn no_key(signature: Signature) -> Error {
    Error::new(
        ErrorKind::NoKey,
        format!("the name was encrypted with the key {signature}, which is not at hand"),
    )
}

fn bad(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::BadName, format!("a damaged encrypted name: {why}"))
}

#[cfg(test)]
mod tests;
