//! Names of files and targets of symlinks (tag 70).
//!
//! ```text
//!   "ECRYPTFS_FNEK_ENCRYPTED." base64( 46  length  signature[8]  cipher  ECB( padding  0  name ) )
//!                                                                            at least 16 bytes
//! ```
//! padding = MD5(FNEK), MD5(MD5(FNEK)), .., with 0x42 where there would be a 0; its length makes
//! whole blocks of it all. So a name has one encrypted form, and a damaged one is noticed by its
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

/// What encrypted names begin with.
pub const PREFIX: &[u8] = b"ECRYPTFS_FNEK_ENCRYPTED.";

/// Whether a lower name or target says that it is encrypted.
pub fn is_encoded(lower: &[u8]) -> bool {
    lower.starts_with(PREFIX)
}

/// The key that a lower name or target was encrypted with.
///
/// # Errors
/// `BadName` for one that is damaged.
pub fn signature(lower: &[u8]) -> Result<Signature> {
    Ok(Packed::decode(lower)?.signature)
}

/// Encrypts and decrypts names and symlink targets.
pub struct NameCipher {
    token: Arc<AuthToken>,
    cipher: Cipher,
    blocks: EcbCipher,
    padding: Locked<[u8; PADDING]>,
}

/// Bytes in front of a name, at least: padding and a zero.
const BEFORE: usize = 17;
/// The most padding that any block size leads to.
const PADDING: usize = BEFORE - 1 + 15;
/// The longest symlink target: Linux's limit for a path.
const MAX_TARGET: usize = 4095;
/// The longest lower target that is looked at: what such a one becomes, and more.
const MAX_LOWER_TARGET: usize = 8192;

impl NameCipher {
    /// The longest name; the next one is longer encrypted than a lower file system takes.
    pub const MAX_NAME: usize = 143;
    /// The longest lower name.
    pub const MAX_LOWER: usize = 255;

    /// A token's cipher for names.
    ///
    /// # Errors
    /// `Memory`; `Unsupported` when `UNDERSEAL_CPU` names what this processor lacks.
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

    /// The cipher for names like this one, whose packet does not say its key's size: the one that
    /// the padding proves right.
    ///
    /// # Errors
    /// As [`NameCipher::decode`].
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

    /// Whether the name is one of this key and cipher.
    pub(crate) fn opens(&self, lower: &[u8]) -> bool {
        self.open(lower).is_ok()
    }

    /// The token that names are encrypted for.
    pub fn token(&self) -> &Arc<AuthToken> {
        &self.token
    }

    /// The cipher of names.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// A name's lower form.
    ///
    /// # Errors
    /// `NameTooLong`; `BadName` for what is no name.
    pub fn encode(&self, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        if name.len() > Self::MAX_NAME {
            let context =
                format!("a name of {} bytes: encrypted names have {} at most", name.len(), Self::MAX_NAME);
            return Err(Error::new(ErrorKind::NameTooLong, context));
        }
        self.seal(name)
    }

    /// The name that a lower name stands for.
    ///
    /// # Errors
    /// `BadName` for what is not encrypted, is damaged, or would be no name; `NoKey` for one that
    /// another key encrypted.
    pub fn decode(&self, lower: &[u8]) -> Result<Vec<u8>> {
        let name = self.open(lower)?;
        check_name(&name)?;
        Ok(name)
    }

    /// A symlink target's lower form.
    ///
    /// # Errors
    /// `NameTooLong`; `BadName` for what is no target.
    pub fn encode_target(&self, target: &[u8]) -> Result<Vec<u8>> {
        check_target(target)?;
        if target.len() > MAX_TARGET {
            let context = format!("a symlink target of {} bytes: Linux takes {MAX_TARGET}", target.len());
            return Err(Error::new(ErrorKind::NameTooLong, context));
        }
        self.seal(target)
    }

    /// The symlink target that a lower one stands for.
    ///
    /// # Errors
    /// As [`NameCipher::decode`].
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

/// Nothing that a lower name decrypts to may lead elsewhere.
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
