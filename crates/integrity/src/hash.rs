//! Hashes and MACs by their names in the kernel's crypto API, and the tags made with them.

mod functions;

use std::fmt;
use std::sync::Arc;

use underseal_cipher::Key;

use crate::{Error, ErrorKind, Result};
use functions::Function;

/// A hash or MAC with its key, for tags or for a journal.
#[derive(Clone)]
pub struct KeyedHash {
    name: String,
    is_keyed: bool,
    function: Arc<dyn Function>,
}

impl KeyedHash {
    /// Finds the hash of this name: `crc32c`, `sha256`, `hmac(sha256)`; also `hmac-sha256`, in
    /// cryptsetup's form.
    ///
    /// # Errors
    /// `Unsupported` for other names, `BadKey` for a missing, superfluous or wrong-sized key.
    pub fn new(name: &str, key: Option<&Key>) -> Result<Self> {
        let name = match name.strip_prefix("hmac-") {
            Some(hash) => format!("hmac({hash})"),
            None => name.to_string(),
        };
        let key = key.map(Key::as_bytes).filter(|key| !key.is_empty());
        let hmac = name.strip_prefix("hmac(").and_then(|rest| rest.strip_suffix(')'));
        let function = match hmac {
            Some(hash) => functions::hmac(hash, key.ok_or_else(|| bad_key(&name, "needs a key"))?)?,
            None => functions::hash(&name, key)?,
        };
        let unsupported =
            || Error::new(ErrorKind::Unsupported, format!("the hash {} is not supported", printable(&name)));
        let function = function.ok_or_else(unsupported)?;
        Ok(Self { is_keyed: key.is_some(), name, function })
    }

    /// The name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for a MAC with a key.
    pub fn is_keyed(&self) -> bool {
        self.is_keyed
    }

    /// Bytes of the result.
    pub fn size(&self) -> usize {
        self.function.size()
    }

    /// Hashes the parts, one after the other, into `out`, which has the length [`KeyedHash::size`].
    pub fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        self.function.digest(parts, out);
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hash")
            .field("name", &self.name)
            .field("is_keyed", &self.is_keyed)
            .finish_non_exhaustive()
    }
}

/// Makes the tags of a volume's blocks.
#[derive(Clone, Debug)]
pub struct TagMaker {
    hash: KeyedHash,
    salt: Option<[u8; 16]>,
    size: usize,
    block_size: usize,
}

/// The byte of which a discarded block's tag consists.
pub const DISCARDED: u8 = 0xf6;

impl TagMaker {
    /// Makes tags of `size` bytes for blocks of `block_size`; `salt` with
    /// [`crate::Flags::FIXED_HMAC`].
    pub fn new(hash: KeyedHash, salt: Option<[u8; 16]>, size: usize, block_size: usize) -> Self {
        Self { hash, salt, size, block_size }
    }

    /// Writes the tags of the blocks in `data`, of which the first begins at `sector`, to `tags`.
    pub fn make(&self, sector: u64, data: &[u8], tags: &mut [u8]) {
        self.digest(sector, data, &mut |nth, digest| {
            if let Some(tag) = tags.get_mut(nth * self.size..(nth + 1) * self.size) {
                tag.copy_from_slice(&digest[..self.size]);
            }
        });
    }

    /// The sectors of the blocks in `data` that do not match their tags. With `discards`, discarded
    /// blocks match.
    pub fn bad(
        &self,
        sector: u64,
        data: &[u8],
        tags: &[u8],
        discards: bool,
    ) -> impl Iterator<Item = u64> + use<> {
        let mut bad = Vec::new();
        self.digest(sector, data, &mut |nth, digest| {
            let Some(tag) = tags.get(nth * self.size..(nth + 1) * self.size) else { return };
            // All bytes are compared, whatever the first difference: the time does not reveal how
            // many bytes of a forged tag are right.
            let difference = digest.iter().zip(tag).fold(0, |all, (made, stored)| all | (made ^ stored));
            let discarded = || discards && tag.iter().all(|byte| *byte == DISCARDED);
            if difference != 0 && !discarded() {
                bad.push(sector + (nth * (self.block_size / 512)) as u64);
            }
        });
        bad.into_iter()
    }

    /// Calls `each` with the number of each block in `data` and its digest, padded with zeros.
    fn digest(&self, sector: u64, data: &[u8], each: &mut dyn FnMut(usize, &[u8; LARGEST])) {
        let salt = self.salt.as_ref().map_or(&[][..], |salt| salt);
        let mut digest = [0; LARGEST];
        self.hash.function.digest_blocks(salt, sector, data, self.block_size, &mut |nth, made| {
            digest[..made.len()].copy_from_slice(made);
            each(nth, &digest);
        });
    }
}

/// Room for the largest tag.
const LARGEST: usize = crate::MAX_TAG as usize;

fn bad_key(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::BadKey, format!("{name} {what}"))
}

/// A text from a table or a user, with control characters escaped for terminals.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}
