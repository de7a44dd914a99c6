//! The ciphers that the format has codes for, with the key sizes of files.
//!
//! A key is wrapped in whole blocks of its own cipher, so the kernel refuses other sizes (EINVAL).
//! Only AES-192 keys are padded, to 32 bytes.

use std::fmt;

use crate::{Error, ErrorKind, Result};

/// A cipher with its key size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cipher {
    row: &'static Row,
    key_bytes: usize,
}

#[derive(PartialEq, Eq, Hash)]
struct Row {
    name: &'static str,
    block: usize,
    /// The key sizes.
    keys: &'static [usize],
}

const AES: Row = Row { name: "aes", block: 16, keys: &[16, 24, 32] };
const DES3: Row = Row { name: "des3_ede", block: 8, keys: &[24] };
const CAST5: Row = Row { name: "cast5", block: 8, keys: &[8, 16] };
const BLOWFISH: Row = Row { name: "blowfish", block: 8, keys: &[8, 16, 24, 32, 40, 48, 56] };
const TWOFISH: Row = Row { name: "twofish", block: 16, keys: &[16, 32] };
const CAST6: Row = Row { name: "cast6", block: 16, keys: &[16, 32] };

/// The codes of the format.
static CODES: [(u8, &Row); 8] = [
    (2, &DES3),
    (3, &CAST5),
    (4, &BLOWFISH),
    (AES_128, &AES),
    (AES_192, &AES),
    (AES_256, &AES),
    (0x0a, &TWOFISH),
    (0x0b, &CAST6),
];

const AES_128: u8 = 7;
const AES_192: u8 = 8;
const AES_256: u8 = 9;

impl Cipher {
    /// AES-128, the default of the tools of eCryptfs.
    pub const DEFAULT: Self = Self { row: &AES, key_bytes: 16 };

    /// Returns the cipher of this name in the kernel's words, with a key of `key_bytes` bytes.
    ///
    /// # Errors
    /// `BadOption` when it does not exist.
    pub fn new(name: &str, key_bytes: usize) -> Result<Self> {
        let row = CODES.iter().find(|(_, row)| row.name == name).map(|&(_, row)| row);
        let row = row.ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            let context = format!("eCryptfs has no cipher \"{name}\", but {}", names.join(", "));
            Error::new(ErrorKind::BadOption, context)
        })?;
        Self::of(row, key_bytes)
    }

    /// Returns the cipher of a code, with a wrapped key of `wrapped_bytes` bytes.
    ///
    /// # Errors
    /// `BadHeader` when it does not exist.
    pub fn from_code(code: u8, wrapped_bytes: usize) -> Result<Self> {
        let row = CODES.iter().find(|(of, _)| *of == code).map(|&(_, row)| row);
        let row =
            row.ok_or_else(|| Error::new(ErrorKind::BadHeader, format!("no cipher has the code {code}")))?;
        // The wrapped key's length decides, not the code; except for AES-192, whose key is padded.
        let key_bytes = if code == AES_192 { 24 } else { wrapped_bytes };
        let cipher = Self::of(row, key_bytes).ok().filter(|cipher| cipher.wrapped_bytes() == wrapped_bytes);
        cipher.ok_or_else(|| {
            let context = format!("{} has no wrapped key of {wrapped_bytes} bytes", row.name);
            Error::new(ErrorKind::BadHeader, context)
        })
    }

    /// Returns the cipher of this name with its default key size: AES-128, as in the tools, and the
    /// longest key of any other cipher, as in the kernel.
    ///
    /// # Errors
    /// `BadOption` when it does not exist.
    pub fn named(name: &str) -> Result<Self> {
        let largest = Self::all().filter(|cipher| cipher.name() == name).last();
        match name {
            "aes" => Ok(Self::DEFAULT),
            _ => largest.map_or_else(|| Self::new(name, 0), Ok),
        }
    }

    fn of(row: &'static Row, key_bytes: usize) -> Result<Self> {
        if row.keys.contains(&key_bytes) {
            return Ok(Self { row, key_bytes });
        }
        let sizes: Vec<_> = row.keys.iter().map(ToString::to_string).collect();
        let context = format!("{} takes keys of {} bytes, not {key_bytes}", row.name, sizes.join(", "));
        Err(Error::new(ErrorKind::BadOption, context))
    }

    /// Returns the possible ciphers of a name with this code, the likely cipher first. The code
    /// decides the size of AES keys; for other ciphers no packet has the size.
    pub(crate) fn of_name(code: u8, likely: Self) -> Result<Vec<Self>> {
        let row = CODES.iter().find(|(of, _)| *of == code).map(|&(_, row)| row);
        let row =
            row.ok_or_else(|| Error::new(ErrorKind::BadName, format!("no cipher has the code {code}")))?;
        let of_row = |&key_bytes: &usize| Self { row, key_bytes };
        let mut all: Vec<_> = row.keys.iter().map(of_row).filter(|cipher| cipher.code() == code).collect();
        all.sort_by_key(|cipher| *cipher != likely);
        Ok(all)
    }

    /// Returns every cipher.
    pub fn all() -> impl Iterator<Item = Self> {
        let rows = CODES.iter().filter(|(code, _)| ![AES_192, AES_256].contains(code));
        rows.flat_map(|&(_, row)| row.keys.iter().map(move |&key_bytes| Self { row, key_bytes }))
    }

    /// Returns the names, without repetition.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CODES.iter().filter(|(code, _)| ![AES_192, AES_256].contains(code)).map(|(_, row)| row.name)
    }

    /// Returns the code in headers and names.
    pub fn code(self) -> u8 {
        match (self.row.name, self.key_bytes) {
            ("aes", 24) => AES_192,
            ("aes", 32) => AES_256,
            (name, _) => CODES.iter().find(|(_, row)| row.name == name).map_or(0, |(code, _)| *code),
        }
    }

    /// Returns the name in the kernel's words.
    pub fn name(self) -> &'static str {
        self.row.name
    }

    /// Returns the key's size.
    pub fn key_bytes(self) -> usize {
        self.key_bytes
    }

    /// Returns the block's size.
    pub fn block_bytes(self) -> usize {
        self.row.block
    }

    /// Returns the wrapped key's size.
    pub fn wrapped_bytes(self) -> usize {
        self.key_bytes.next_multiple_of(self.row.block)
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} key bytes", self.row.name, self.key_bytes)
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.row.name, self.key_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cipher_is_found_by_its_code_and_wrapped_size() {
        assert_eq!(Cipher::all().count(), 3 + 1 + 2 + 7 + 2 + 2);
        for cipher in Cipher::all() {
            assert_eq!(Cipher::from_code(cipher.code(), cipher.wrapped_bytes()).unwrap(), cipher);
            assert_eq!(Cipher::new(cipher.name(), cipher.key_bytes()).unwrap(), cipher);
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        for (name, key_bytes) in
            [("twofish", 24), ("cast6", 24), ("aes", 17), ("serpent", 16), ("", 16), ("cast5", 5)]
        {
            assert_eq!(
                Cipher::new(name, key_bytes).unwrap_err().kind(),
                ErrorKind::BadOption,
                "{name} {key_bytes}"
            );
        }
        for (code, wrapped) in [(0, 16), (1, 16), (8, 24), (8, 16), (7, 0), (0x0a, 24), (0xff, 16)] {
            assert_eq!(
                Cipher::from_code(code, wrapped).unwrap_err().kind(),
                ErrorKind::BadHeader,
                "{code} {wrapped}"
            );
        }
    }
}
