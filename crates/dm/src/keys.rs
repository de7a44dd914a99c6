//! Keys of the kernel's keyring in tables: `:SIZE:TYPE:NAME` in a crypt line, or in its message
//! `key set`.
//!
//! ```text
//!   add_key(2), in a caller   -> keep: type logon, unreadable for programs     KeptKeys, by number
//!   a load or a message       -> grant: the caller's key of that name          GrantedKeys
//! ```
//!
//! The kernel decides in the caller which keys may be used: the preloaded library requests the
//! table's key there (request_key(2)), as the kernel's dm-crypt does, and sends its serial number,
//! and for a readable key its payload. Granted keys belong to one request.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use linux_keyutils::{Key as KernelKey, KeySerialId};
use rustix::io::Errno;
use underseal_cipher::Key;

use crate::{Error, Mapper, Result};

/// The largest number of kept keys. Keys that no longer exist in the kernel are dropped first.
const MOST: usize = 1024;
/// The length of the longest payload of a kept key.
const LONGEST: usize = 32767;
/// The size of a serial number in bytes.
const SERIAL: usize = 4;

/// Keys that programs cannot read, by their serial numbers.
#[derive(Default)]
pub(crate) struct KeptKeys(Mutex<BTreeMap<i32, Key>>);

impl KeptKeys {
    /// Keeps a key. The message has its serial number, then its payload.
    pub(crate) fn keep(&self, message: &[u8]) -> Result<()> {
        let (serial, payload) = serial(message)?;
        if payload.is_empty() || payload.len() > LONGEST {
            return Err(Error::new(Errno::INVAL, "no key has a payload of this length"));
        }
        let key = Key::new(payload).map_err(|e| Error::new(Errno::NOMEM, e.to_string()))?;
        let mut kept = self.kept();
        if kept.len() >= MOST {
            kept.retain(|serial, _| is_there(*serial));
        }
        if kept.len() >= MOST && !kept.contains_key(&serial) {
            return Err(Error::new(Errno::DQUOT, format!("{MOST} keys are kept already")));
        }
        kept.insert(serial, key);
        Ok(())
    }

    /// Returns a copy of a kept key that still exists in the kernel.
    fn get(&self, serial: i32) -> Option<Key> {
        let mut kept = self.kept();
        if !is_there(serial) {
            kept.remove(&serial);
        }
        kept.get(&serial).and_then(|key| Key::new(key.as_bytes()).ok())
    }

    /// Drops the keys that no longer exist in the kernel.
    pub(crate) fn forget_gone(&self) {
        self.kept().retain(|serial, _| is_there(*serial));
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, BTreeMap<i32, Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true when the kernel has a key of this number that is neither revoked nor expired.
fn is_there(serial: i32) -> bool {
    KernelKey::from_id(KeySerialId::new(serial)).metadata().is_ok()
}

/// The keys of one request, by `TYPE:NAME`.
#[derive(Default)]
pub struct GrantedKeys(Vec<(String, Key)>);

impl GrantedKeys {
    /// Adds a key of the caller's keyrings. The message has its serial number, the length of
    /// `TYPE:NAME` (u32), this text, and the payload, which is empty for a kept key.
    ///
    /// # Errors
    /// `EINVAL` for an incomplete message; `ENOKEY` for a key that is not kept.
    pub fn grant(&mut self, message: &[u8], mapper: &Mapper) -> Result<()> {
        self.grant_from(message, mapper.kept())
    }

    fn grant_from(&mut self, message: &[u8], kept: &KeptKeys) -> Result<()> {
        let cut = || Error::new(Errno::INVAL, "the key's message is cut short");
        let (serial, rest) = serial(message)?;
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let len = u32::from_ne_bytes(*len) as usize;
        let (name, payload) = rest.split_at_checked(len).ok_or_else(cut)?;
        let name =
            std::str::from_utf8(name).map_err(|_| Error::new(Errno::INVAL, "a key's name is no text"))?;
        let key = match payload {
            [] => kept.get(serial).ok_or_else(|| {
                let why = format!("key {} was added where it could not be seen", name.escape_debug());
                Error::new(Errno::NOKEY, why)
            })?,
            payload => Key::new(payload).map_err(|e| Error::new(Errno::NOMEM, e.to_string()))?,
        };
        if self.0.len() >= MOST {
            return Err(Error::new(Errno::INVAL, "a request has too many keys"));
        }
        self.0.push((name.into(), key));
        Ok(())
    }

    /// Returns a copy of the key of this type and name.
    pub fn find(&self, kind: &str, name: &str) -> Option<Key> {
        let is = |known: &str| known.split_once(':') == Some((kind, name));
        let found = self.0.iter().find(|(known, _)| is(known))?;
        Key::new(found.1.as_bytes()).ok()
    }
}

fn serial(message: &[u8]) -> Result<(i32, &[u8])> {
    let parts = message.split_first_chunk::<SERIAL>();
    let (serial, rest) = parts.ok_or_else(|| Error::new(Errno::INVAL, "the key's message is cut short"))?;
    Ok((i32::from_ne_bytes(*serial), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(serial: i32, name: &str, payload: &[u8], kept: &KeptKeys) -> Result<GrantedKeys> {
        let len = u32::try_from(name.len()).unwrap();
        let parts = [&serial.to_ne_bytes()[..], &len.to_ne_bytes(), name.as_bytes(), payload];
        let mut keys = GrantedKeys::default();
        keys.grant_from(&parts.concat(), kept)?;
        Ok(keys)
    }

    #[test]
    fn a_key_with_its_payload_is_found_by_type_and_name() {
        let keys = granted(7, "user:a:b", b"bytes", &KeptKeys::default()).unwrap();
        assert_eq!(keys.find("user", "a:b").unwrap().as_bytes(), b"bytes");
        assert!(keys.find("logon", "a:b").is_none() && keys.find("user", "a").is_none());
    }

    #[test]
    fn a_key_that_was_never_seen_is_refused() {
        let refused = granted(7, "logon:a:b", b"", &KeptKeys::default()).err().unwrap();
        assert_eq!(refused.errno(), Errno::NOKEY);
    }

    #[test]
    fn messages_that_are_cut_short_are_refused() {
        let kept = KeptKeys::default();
        for message in [&b""[..], b"123", b"1234", b"12345678", &[0, 0, 0, 0, 255, 255, 255, 255]] {
            let errno = GrantedKeys::default().grant_from(message, &kept).unwrap_err().errno();
            assert!(matches!(errno, Errno::INVAL | Errno::NOKEY), "{message:?}: {errno}");
        }
        assert_eq!(kept.keep(b"123").unwrap_err().errno(), Errno::INVAL);
        assert_eq!(kept.keep(b"1234").unwrap_err().errno(), Errno::INVAL);
    }
}
