//! The key in a crypt line's parameters, and in a key message.

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_dm::{Error, GrantedKeys, Result};
use underseal_volume::table::{KeyText, TableKey};
use zeroize::Zeroizing;

use super::child::nonsense;

/// Replaces the key, which is the second word, in a crypt line's parameters; a wiped key is
/// replaced by zeros.
pub(super) fn with_key(params: &str, key: Option<&str>) -> Result<Key> {
    let (cipher, old, rest) = split_at_key(params)?;
    let zeros = "0".repeat(digits_of(old));
    let mut text = KeyText::default();
    text.extend([cipher, " ", key.unwrap_or(&zeros), rest]);
    Key::new(text.as_bytes()).map_err(|e| Error::new(Errno::NOMEM, e.to_string()))
}

/// Returns how many hex digits a crypt line's key has, or would have.
pub(super) fn key_digits(params: &str) -> Result<usize> {
    Ok(digits_of(split_at_key(params)?.1))
}

fn digits_of(word: &str) -> usize {
    match TableKey::parse(word) {
        Ok(key @ TableKey::Keyring { .. }) => key.len().saturating_mul(2),
        _ => word.len(),
    }
}

/// Splits a crypt line's parameters into the cipher, the key, and the rest.
fn split_at_key(params: &str) -> Result<(&str, &str, &str)> {
    let (cipher, rest) = params.split_once(' ').ok_or_else(nonsense)?;
    // A key's name may have spaces, each behind a backslash.
    let mut escaped = false;
    let ends = |c: char| {
        let ends = c == ' ' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    let (old, rest) = rest.split_at(rest.find(ends).ok_or_else(nonsense)?);
    Ok((cipher, old, rest))
}

/// Returns the key of a key message in hex digits; a key of the keyring is read.
pub(super) fn digits(word: &str, keys: &GrantedKeys) -> Result<Zeroizing<String>> {
    // The word may be the key itself.
    let mut name = Zeroizing::new(String::with_capacity(word.len()));
    let mut characters = word.chars();
    while let Some(c) = characters.next() {
        name.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    let invalid = |e: underseal_volume::Error| Error::new(Errno::INVAL, e.to_string());
    let TableKey::Keyring { size, kind, description } = TableKey::parse(&name).map_err(invalid)? else {
        return Ok(Zeroizing::new(word.to_owned()));
    };
    let missing = || Error::new(Errno::NOKEY, format!("the caller has no key {kind}:{description}"));
    let key = keys.find(&kind, &description).ok_or_else(missing)?;
    if key.len() != size {
        let why = format!("key {kind}:{description} has {} bytes and not {size}", key.len());
        return Err(Error::new(Errno::INVAL, why));
    }
    let mut digits = Zeroizing::new(String::with_capacity(2 * key.len()));
    for byte in key.as_bytes() {
        for half in [byte >> 4, byte & 0xf] {
            digits.extend(char::from_digit(half.into(), 16));
        }
    }
    Ok(digits)
}
