//! The keys that open files: made from a passphrase, found by their signature.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha512};
use underseal_cipher::{EcbCipher, Key};

use crate::{Cipher, Error, ErrorKind, Result};

/// The name of a key: the first 8 bytes of its SHA-512, written as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature([u8; 8]);

impl Signature {
    /// Returns a signature from the bytes in a header.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes for a header.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }

    fn of(key: &[u8]) -> Self {
        let digest = Sha512::digest(key);
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(first)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signature {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0; 8];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| {
            Error::new(ErrorKind::BadOption, format!("\"{text}\" is no signature of 16 hex digits"))
        })?;
        Ok(Self(bytes))
    }
}

/// A key that wraps the keys of files (FEKEK), or a key that encrypts names (FNEK).
pub struct AuthToken {
    signature: Signature,
    salt: [u8; 8],
    key: Key,
}

/// The number of SHA-512 rounds in all.
const ROUNDS: usize = 65536;

impl AuthToken {
    /// A key's size. A cipher uses as much of it as it needs.
    pub const KEY_BYTES: usize = 64;
    /// The length of the longest passphrase.
    pub const MAX_PASSPHRASE: usize = 64;
    /// The salt of passphrases in eCryptfs's tools.
    pub const DEFAULT_SALT: [u8; 8] = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];
    /// The salt of the names' key in eCryptfs's tools: eight hex digits as text.
    pub const NAME_SALT: [u8; 8] = *b"99887766";

    /// Derives the key: SHA-512, 65536 times, of salt || passphrase.
    ///
    /// # Errors
    /// `BadOption` for an empty passphrase, and for more than 64 bytes.
    pub fn from_passphrase(passphrase: &[u8], salt: [u8; 8]) -> Result<Self> {
        if !(1..=Self::MAX_PASSPHRASE).contains(&passphrase.len()) {
            let context = format!("a passphrase of eCryptfs has 1 to 64 bytes, not {}", passphrase.len());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let mut key = Key::zeroed(Self::KEY_BYTES)?;
        let mut hash = Sha512::new();
        hash.update(salt);
        hash.update(passphrase);
        let mut hash = into(hash, &mut key);
        for _ in 1..ROUNDS {
            hash.update(key.as_bytes());
            hash = into(hash, &mut key);
        }
        Ok(Self { signature: Signature::of(key.as_bytes()), salt, key })
    }

    /// Returns a token of a given key of 64 bytes, and of the salt for headers. A given signature
    /// replaces the key's own: the kernel's `encrypted` keys may have any signature.
    ///
    /// # Errors
    /// `BadOption` for a key of another size.
    pub fn from_key(key: &Key, salt: [u8; 8], signature: Option<Signature>) -> Result<Self> {
        if key.len() != Self::KEY_BYTES {
            let context = format!("a key of eCryptfs has 64 bytes, not {}", key.len());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let signature = signature.unwrap_or_else(|| Signature::of(key.as_bytes()));
        Ok(Self { signature, salt, key: Key::new(key.as_bytes())? })
    }

    /// Returns the signature.
    pub fn signature(&self) -> Signature {
        self.signature
    }

    /// Returns the salt of its passphrase.
    pub fn salt(&self) -> [u8; 8] {
        self.salt
    }

    /// Returns all 64 bytes.
    pub(crate) fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// Returns the cipher over blocks, keyed with the part of the key that it needs.
    pub(crate) fn blocks(&self, cipher: Cipher) -> Result<EcbCipher> {
        Ok(EcbCipher::new(cipher.name(), &self.key()[..cipher.key_bytes()])?)
    }
}

/// Writes the digest directly into locked memory, and resets the hash.
fn into(mut hash: Sha512, key: &mut Key) -> Sha512 {
    use sha2::digest::DynDigest;
    // The buffer has the digest's length.
    let _ = DynDigest::finalize_into_reset(&mut hash, key.as_mut_bytes());
    hash
}

impl fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthToken({}, [redacted])", self.signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_tools() {
        for (passphrase, salt, signature) in [
            ("test", AuthToken::DEFAULT_SALT, "d395309aaad4de06"),
            ("test", AuthToken::NAME_SALT, "be877764c5918621"),
            ("r3 golden passphrase", AuthToken::DEFAULT_SALT, "0ebe4519ccc61621"),
            ("r3 golden passphrase", AuthToken::NAME_SALT, "dcc4faa948be4b5e"),
        ] {
            let token = AuthToken::from_passphrase(passphrase.as_bytes(), salt).unwrap();
            assert_eq!(token.signature().to_string(), signature, "{passphrase}");
        }
    }

    #[test]
    fn a_passphrase_has_1_to_64_bytes() {
        for len in [0, 65, 4096] {
            let error = AuthToken::from_passphrase(&vec![b'a'; len], AuthToken::DEFAULT_SALT).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadOption);
        }
        assert!(AuthToken::from_passphrase(&[b'a'; 64], AuthToken::DEFAULT_SALT).is_ok());
    }

    #[test]
    fn a_token_never_prints_its_key() {
        let key = Key::new(&[0xab; 64]).unwrap();
        let token = AuthToken::from_key(&key, [0; 8], None).unwrap();
        assert!(!format!("{token:?}").contains("abab"));
    }
}
