//! The key of a crypt line: in hex, `-` for none, or the name of a key in the kernel's keyring.

use std::fmt::Write;

use linux_keyutils::{KeyRing, KeyRingIdentifier};
use underseal_cipher::Key;
use zeroize::Zeroizing;

use super::words::number;
use super::{Table, Target, bad, of_cipher};
use crate::text::printable;
use crate::{Error, ErrorKind, Result};

/// The source of a key.
#[derive(Debug)]
pub enum TableKey {
    /// The bytes in the line itself; empty for `-`.
    Bytes(Key),
    /// `:<size>:<type>:<description>`.
    Keyring {
        /// The size in bytes.
        size: usize,
        /// `user`, `logon`, `encrypted` or `trusted`.
        kind: String,
        /// The key's name in the keyring.
        description: String,
    },
}

impl TableKey {
    /// Parses the word of a crypt line. The caller wipes the word.
    ///
    /// # Errors
    /// `BadOption`, in the kernel's words.
    pub fn parse(word: &str) -> Result<Self> {
        if let Some(name) = word.strip_prefix(':') {
            return Self::parse_keyring(name);
        }
        if word == "-" {
            return Ok(Self::Bytes(Key::zeroed(0).map_err(of_cipher)?));
        }
        let bad = || {
            bad("Error decoding and setting key: a key is an even number of hex digits, - or :SIZE:TYPE:NAME")
        };
        let (digits, rest) = word.as_bytes().as_chunks::<2>();
        if !rest.is_empty() || digits.is_empty() {
            return Err(bad());
        }
        let mut key = Key::zeroed(digits.len()).map_err(of_cipher)?;
        for (byte, [high, low]) in key.as_mut_bytes().iter_mut().zip(digits) {
            let digit =
                |c: &u8| char::from(*c).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or_else(bad);
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Ok(Self::Bytes(key))
    }

    fn parse_keyring(name: &str) -> Result<Self> {
        let not = |why: &str| bad(format!("Error decoding and setting key: {why}"));
        let mut parts = name.splitn(3, ':');
        let (size, kind, description) = (parts.next(), parts.next(), parts.next());
        let size = size.and_then(number).and_then(|n| usize::try_from(n).ok());
        let size = size.ok_or_else(|| bad("Cannot parse key size: want :SIZE:TYPE:NAME"))?;
        if !(1..=Key::MAX).contains(&size) {
            return Err(not("a key has from 1 byte to 8 MiB"));
        }
        let kind = kind.filter(|kind| ["user", "logon", "encrypted", "trusted"].contains(kind));
        let kind = kind.ok_or_else(|| not("the type is user, logon, encrypted or trusted"))?;
        let description = description.filter(|d| !d.is_empty()).ok_or_else(|| not("the key has no name"))?;
        Ok(Self::Keyring { size, kind: kind.into(), description: description.into() })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(key) => key.len(),
            Self::Keyring { size, .. } => *size,
        }
    }

    /// Returns true for `-`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes; a key of the keyring is copied.
    ///
    /// # Errors
    /// `Unsupported` for kinds that programs cannot read; `WrongKey` when the key does not exist,
    /// or has another length; `Io` when the keyring cannot be read.
    pub fn bytes(&self) -> Result<Key> {
        match self {
            Self::Bytes(key) => Key::new(key.as_bytes()).map_err(of_cipher),
            Self::Keyring { size, kind, description } => from_keyring(*size, kind, description),
        }
    }

    /// Returns the word, with zeros for hex digits unless `shown` is true.
    pub(super) fn print(&self, shown: bool) -> Zeroizing<String> {
        match self {
            Self::Bytes(key) if key.is_empty() => Zeroizing::new("-".into()),
            Self::Bytes(key) => {
                let mut hex = Zeroizing::new(String::with_capacity(2 * key.len()));
                for byte in key.as_bytes() {
                    // Writing to a string does not fail.
                    let _ = write!(hex, "{:02x}", if shown { *byte } else { 0 });
                }
                hex
            }
            Self::Keyring { size, kind, description } => {
                Zeroizing::new(format!(":{size}:{kind}:{}", super::words::escape(description)))
            }
        }
    }
}

impl Table {
    /// Replaces names of keyring keys by the keys' bytes. `find` returns a key by type and name, if
    /// it has the key.
    ///
    /// # Errors
    /// `WrongKey` for a key of another length than the line's; the errors of `find`.
    pub fn resolve_keys(&mut self, find: impl Fn(&str, &str) -> Result<Option<Key>>) -> Result<()> {
        for line in &mut self.lines {
            let Target::Crypt(crypt) = &mut line.target else { continue };
            let TableKey::Keyring { size, kind, description } = &crypt.key else { continue };
            let Some(key) = find(kind, description)? else { continue };
            is_as_long(description, key.len(), *size)?;
            crypt.key = TableKey::Bytes(key);
        }
        Ok(())
    }
}

fn is_as_long(description: &str, len: usize, size: usize) -> Result<()> {
    if len == size {
        return Ok(());
    }
    let name = printable(description);
    let why = format!("Error decoding and setting key: key {name} has {len} bytes and not {size}");
    Err(Error::new(ErrorKind::WrongKey, why))
}

fn from_keyring(size: usize, kind: &str, description: &str) -> Result<Key> {
    let name = printable(description);
    if kind != "user" {
        let why = format!(
            "key {name}: the kernel gives {kind} keys to no program; put it into the keyring as a user key"
        );
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let io = |e: linux_keyutils::KeyError| {
        let kind =
            if e == linux_keyutils::KeyError::KeyDoesNotExist { ErrorKind::WrongKey } else { ErrorKind::Io };
        Error::new(kind, format!("Error decoding and setting key: key {name} of the keyring: {e:?}"))
    };
    let rings = [
        KeyRingIdentifier::Thread,
        KeyRingIdentifier::Process,
        KeyRingIdentifier::Session,
        KeyRingIdentifier::User,
    ];
    let mut found = Err(linux_keyutils::KeyError::KeyDoesNotExist);
    for ring in rings {
        found = KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(description));
        if found.is_ok() {
            break;
        }
    }
    // A further byte, to notice a longer key.
    let mut key = Key::zeroed(size + 1).map_err(of_cipher)?;
    let len = found.map_err(io)?.read(&mut key.as_mut_bytes()).map_err(io)?;
    is_as_long(description, len, size)?;
    key.truncate(size);
    Ok(key)
}
