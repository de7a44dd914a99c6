//! The available keys, and passphrases under the salts of headers.

use std::os::fd::AsFd;
use std::sync::Arc;

use underseal_cipher::Key;

use crate::name::long;
use crate::{
    AuthToken, Cipher, Error, ErrorKind, FileHeader, FileKey, KeyPacket, Keyring, NameCipher, Result, name,
};

/// Keys for a tree. A passphrase gives the key of contents and the key of names.
#[derive(Debug)]
pub struct TreeKeys {
    ring: Keyring,
    passphrases: Vec<Key>,
    /// The salts that were tried for a header.
    tried: Vec<[u8; 8]>,
    names: Vec<NameCipher>,
    /// The cipher of names, for packets without the key's size.
    name_cipher: Cipher,
    /// True when names and targets are never encrypted, whatever they look like.
    plain_names: bool,
}

/// The largest number of tried salts, each with its SHA-512 65536 times: a forged tree must not
/// take forever.
const MAX_SALTS: usize = 32;

impl TreeKeys {
    /// Returns no key, and this cipher for names.
    pub fn new(name_cipher: Cipher) -> Self {
        Self {
            ring: Keyring::new(),
            passphrases: Vec::new(),
            tried: Vec::new(),
            names: Vec::new(),
            name_cipher,
            plain_names: false,
        }
    }

    /// Takes all names and symlink targets as they are, also those that look like encrypted ones,
    /// as a mount without encrypted names does.
    pub fn set_plain_names(&mut self) {
        self.plain_names = true;
    }

    pub(super) fn has_plain_names(&self) -> bool {
        self.plain_names
    }

    /// Adds a passphrase. Returns its two tokens: for contents under the salt, and for names.
    ///
    /// # Errors
    /// `BadOption` for a passphrase that is empty or too long.
    pub fn add_passphrase(&mut self, passphrase: Key, salt: [u8; 8]) -> Result<[Arc<AuthToken>; 2]> {
        let contents = Arc::new(AuthToken::from_passphrase(passphrase.as_bytes(), salt)?);
        let names = Arc::new(AuthToken::from_passphrase(passphrase.as_bytes(), AuthToken::NAME_SALT)?);
        self.ring.add(contents.clone());
        self.ring.add(names.clone());
        self.passphrases.push(passphrase);
        Ok([contents, names])
    }

    /// Adds a key.
    pub fn add(&mut self, token: impl Into<Arc<AuthToken>>) {
        self.ring.add(token);
    }

    /// Returns all keys known so far.
    pub fn ring(&self) -> &Keyring {
        &self.ring
    }

    /// Returns a file's key.
    ///
    /// # Errors
    /// The kinds of [`FileHeader::unlock`].
    pub fn unlock(&mut self, header: &FileHeader) -> Result<FileKey> {
        let refused = match header.unlock(&self.ring) {
            Err(error) if error.kind() == ErrorKind::NoKey => error,
            unlocked => return unlocked,
        };
        for packet in header.packets() {
            if let KeyPacket::Passphrase { salt, .. } = packet
                && !self.tried.contains(salt)
                && self.tried.len() < MAX_SALTS
            {
                self.tried.push(*salt);
                for passphrase in &self.passphrases {
                    self.ring.add(AuthToken::from_passphrase(passphrase.as_bytes(), *salt)?);
                }
            }
        }
        header.unlock(&self.ring).map_err(|_| refused)
    }

    /// Returns the name of a lower name: the lower name itself, unless it is encrypted.
    ///
    /// # Errors
    /// The kinds of [`NameCipher::decode`]; `BadName` for a long name's lower name, which does not
    /// contain the name.
    pub fn decode_name(&mut self, lower: &[u8]) -> Result<Vec<u8>> {
        if long::is_long(lower) && !self.plain_names {
            let context = "a long name's digest: the file beside it, with .name at the end, holds the name";
            return Err(Error::new(ErrorKind::BadName, context));
        }
        if !name::is_encoded(lower) || self.plain_names {
            return Ok(lower.to_vec());
        }
        self.names_of(lower)?.decode(lower)
    }

    /// Returns the name of an entry of a lower tree, like [`TreeKeys::decode_name`], including long
    /// names.
    ///
    /// Fails with the kinds of [`NameCipher::decode`].
    pub(super) fn decode_entry(&mut self, folder: impl AsFd, name: &[u8]) -> Result<Vec<u8>> {
        if !long::is_long(name) || self.plain_names {
            return self.decode_name(name);
        }
        self.decode_name(&long::read(folder, name)?)
    }

    /// Returns the target of a lower symlink: the lower target itself, unless it is encrypted.
    ///
    /// # Errors
    /// The kinds of [`NameCipher::decode_target`].
    pub fn decode_target(&mut self, lower: &[u8]) -> Result<Vec<u8>> {
        if !name::is_encoded(lower) || self.plain_names {
            return Ok(lower.to_vec());
        }
        self.names_of(lower)?.decode_target(lower)
    }

    /// Returns the cipher that opens a name, if its key is available.
    fn names_of(&mut self, lower: &[u8]) -> Result<&NameCipher> {
        let at = match self.names.iter().position(|names| names.opens(lower)) {
            Some(at) => at,
            None => {
                let signature = name::signature(lower)?;
                let token = self.ring.find(signature).ok_or_else(|| name::no_key(signature))?;
                self.names.push(NameCipher::like(lower, token, self.name_cipher)?);
                self.names.len() - 1
            }
        };
        Ok(&self.names[at])
    }
}
