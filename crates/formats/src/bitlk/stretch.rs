//! BitLocker's key derivation: SHA-256 in a loop of 2^20 rounds.
//!
//! The loop is the cipher crate's, which keeps the digest in the processor's registers.

use sha2::{Digest, Sha256};
use underseal_cipher::{Key, Locked, sha256_chain};

use crate::{Error, ErrorKind, Result};

/// Rounds of one stretch.
pub(crate) const ROUNDS: u64 = 1 << 20;

/// The AES-256 key of an initial digest and a salt.
///
/// Returns `Memory`, and `BadHeader` for an initial digest of another length.
pub(crate) fn stretch(initial: &Key, salt: [u8; 16]) -> Result<Key> {
    let initial = <&[u8; 32]>::try_from(initial.as_bytes());
    let initial =
        initial.map_err(|_| Error::new(ErrorKind::BadHeader, "an initial digest of another size"))?;
    Ok(sha256_chain(initial, salt, ROUNDS)?)
}

/// The initial digest of a password: SHA-256 twice over its UTF-16 code units.
///
/// Returns `Memory`.
pub(crate) fn of_password(password: &str) -> Result<Key> {
    let units = password.encode_utf16().count();
    let mut utf16 = Key::zeroed(units * 2)?;
    for (bytes, unit) in utf16.as_mut_bytes().as_chunks_mut().0.iter_mut().zip(password.encode_utf16()) {
        *bytes = unit.to_le_bytes();
    }
    once(once(&utf16)?)
}

/// The initial digest of a recovery password's 16 bytes.
///
/// Returns `Memory`.
pub(crate) fn of_recovery(bytes: &Key) -> Result<Key> {
    once(bytes)
}

/// SHA-256, from locked memory to locked memory.
fn once(bytes: impl std::borrow::Borrow<Key>) -> Result<Key> {
    let mut hash = Locked::new(Sha256::new())?;
    hash.update(bytes.borrow().as_bytes());
    let mut digest = Key::zeroed(32)?;
    hash.finalize_into_reset(digest.as_mut_bytes().try_into().expect("a key of 32 bytes"));
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::super::recovery::{Recovery, parse};
    use super::*;

    #[test]
    fn a_stretch_is_that_of_windows() {
        let salt = std::array::from_fn(|nth| nth.to_le_bytes()[0]);
        let password = of_password("anaconda").unwrap();
        let expected = "f7d898db56e670f9fb6f18a9678afa1e0c883d7a9424bed9e72d90ca76f78e9a";
        assert_eq!(hex::encode(stretch(&password, salt).unwrap().as_bytes()), expected);
        let text = "042647-302313-590458-071500-554323-116567-412181-516978";
        let Recovery::Valid(bytes) = parse(text).unwrap() else { panic!() };
        let expected = "f3c32210c1fadc511e2822ca7e712e50115734a518605ca5de9faea1a05853ca";
        let key = stretch(&of_recovery(&bytes).unwrap(), salt).unwrap();
        assert_eq!(hex::encode(key.as_bytes()), expected);
    }
}
