//! Key material: zeroized, locked in memory, never printed.

use std::fmt;

use zeroize::Zeroize;

use crate::locked::LockedMemory;
use crate::{Error, ErrorKind, Result};

/// A secret: a volume key, a keyslot key, a passphrase or a key file's contents.
///
/// It lives in memory that is locked (where the limit allows), left out of core dumps, and wiped on
/// drop. Comparing two keys takes a time that depends on their lengths only.
pub struct Key {
    bytes: LockedMemory,
    len: usize,
}

impl Key {
    /// The most bytes a key may have: cryptsetup's limit for key files, 8 MiB.
    pub const MAX: usize = 8 << 20;

    /// A key of `len` zero bytes, to be filled through [`Key::as_mut_bytes`].
    ///
    /// # Errors
    /// `KeySize` above [`Key::MAX`], `Memory` when the system has no page.
    pub fn zeroed(len: usize) -> Result<Self> {
        if len > Self::MAX {
            let context = format!("a key of {len} bytes is longer than {}", Self::MAX);
            return Err(Error::new(ErrorKind::KeySize, context));
        }
        Ok(Self { bytes: LockedMemory::new(len)?, len })
    }

    /// Copies `bytes`; the caller wipes its own copy.
    ///
    /// # Errors
    /// As [`Key::zeroed`].
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut key = Self::zeroed(bytes.len())?;
        key.as_mut_bytes().copy_from_slice(bytes);
        Ok(key)
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The key's bytes, for writing.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a key without bytes, for `cipher_null`.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the key, and wipes the bytes behind.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.bytes[len..].zeroize();
            self.len = len;
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let difference = self.as_bytes().iter().zip(other.as_bytes()).fold(0u8, |acc, (a, b)| acc | (a ^ b));
        self.len == other.len && std::hint::black_box(difference) == 0
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_prints_its_bytes() {
        let key = Key::new(b"very secret").unwrap();
        assert_eq!(format!("{key:?}"), "[redacted]");
    }

    #[test]
    fn truncating_wipes_the_tail() {
        let mut key = Key::new(&[7; 64]).unwrap();
        key.truncate(16);
        assert_eq!(key.as_bytes(), [7; 16]);
        assert!(key.bytes[16..].iter().all(|&b| b == 0));
    }

    #[test]
    fn keys_compare_by_content_and_length() {
        let key = |b: &[u8]| Key::new(b).unwrap();
        assert!(key(b"abc") == key(b"abc"));
        assert!(key(b"abc") != key(b"abd"));
        assert!(key(b"abc") != key(b"abc\0"));
    }

    #[test]
    fn a_key_longer_than_the_limit_is_refused() {
        assert_eq!(Key::zeroed(Key::MAX + 1).unwrap_err().kind(), ErrorKind::KeySize);
    }
}
