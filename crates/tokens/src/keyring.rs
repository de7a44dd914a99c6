//! `luks2-keyring`: the passphrase is the payload of a `user` key in the kernel.

use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use serde_json::json;
use underseal_cipher::Key;

use crate::member::{Members, wrong};
use crate::{Error, ErrorKind, Result, Token};

/// The longest payload of a `user` key.
const MAX: usize = 32_767;

/// Keyrings in the order of the search.
const RINGS: [KeyRingIdentifier; 5] = [
    KeyRingIdentifier::Thread,
    KeyRingIdentifier::Process,
    KeyRingIdentifier::Session,
    KeyRingIdentifier::User,
    KeyRingIdentifier::UserSession,
];

/// The key's description in a token.
fn description(token: &Token) -> Result<&str> {
    let description = Members(token).text("key_description")?;
    if token.len() != 3 || description.is_empty() {
        return Err(wrong("key_description", "is empty, or there are members besides"));
    }
    Ok(description)
}

/// Checks whether a token could be opened on some machine.
pub(crate) fn check(token: &Token) -> Result<()> {
    description(token).map(|_| ())
}

pub(crate) fn open(token: &Token) -> Result<Key> {
    read(description(token)?)
}

pub(crate) fn enroll(description: &str) -> Result<(Key, Token)> {
    if description.is_empty() {
        return Err(Error::unusable("a key without a description cannot be found"));
    }
    let secret = read(description)?;
    let token = json!({ "type": "luks2-keyring", "keyslots": [], "key_description": description });
    Ok((secret, crate::object(token)))
}

/// Reads the payload of the `user` key with this description. Keyrings are searched in this order:
/// the thread's, the process's, the session's, the user's.
///
/// # Errors
/// `NoHardware` when no keyring has the key, `NotUsable` when the key cannot be read or has no
/// bytes.
pub fn read(description: &str) -> Result<Key> {
    let mut found = Err(KeyError::KeyDoesNotExist);
    for ring in RINGS {
        found = KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(description));
        if found.is_ok() {
            break;
        }
    }
    let key = found.map_err(|e| {
        let kind = if e == KeyError::KeyDoesNotExist { ErrorKind::NoHardware } else { ErrorKind::NotUsable };
        Error::new(kind, format!("no key {description:?} of type user in the kernel's keyrings ({e:?})"))
    })?;
    let mut secret = Key::zeroed(MAX)?;
    let len = key
        .read(&mut secret.as_mut_bytes())
        .map_err(|e| Error::unusable(format!("key {description:?} cannot be read ({e:?})")))?;
    if len == 0 || len > MAX {
        return Err(Error::unusable(format!("key {description:?} has {len} bytes")));
    }
    secret.truncate(len);
    Ok(secret)
}
