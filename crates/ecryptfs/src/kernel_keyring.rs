//! Keys in the kernel's keyring, as stored by `ecryptfs-add-passphrase` and the mount helper: keys
//! of the type "user" with their signature as the name and the kernel's own structure as the
//! payload.
//!
//! ```text
//!   0 version   2 kind   8 a file's key   640 key bytes   648 key[64]
//!   712 signature, hex, and a zero   729 salt[8]
//! ```
//! Integers have the machine's byte order; kind 0 is a passphrase. Programs cannot read keys of the
//! type "encrypted".

use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use underseal_cipher::Key;

use crate::{AuthToken, Error, ErrorKind, Result, Signature};

/// The number of used bytes of a payload; the kernel's structure is padded to whole words.
const PAYLOAD: usize = 737;
/// A limit above the length of any such payload.
const MOST: usize = 1024;

/// Returns the key with this signature.
///
/// # Errors
/// `NoKey` when no keyring of this process has it; `BadFile` for another kind of payload; `Io`.
pub fn find(signature: Signature) -> Result<AuthToken> {
    let rings = [
        KeyRingIdentifier::Thread,
        KeyRingIdentifier::Process,
        KeyRingIdentifier::Session,
        KeyRingIdentifier::User,
    ];
    let name = signature.to_string();
    let mut found = Err(KeyError::KeyDoesNotExist);
    for ring in rings {
        found = KeyRing::from_special_id(ring, false).and_then(|ring| ring.search(&name));
        if found.is_ok() {
            break;
        }
    }
    let failed = |e: KeyError| {
        let kind = if e == KeyError::KeyDoesNotExist { ErrorKind::NoKey } else { ErrorKind::Io };
        Error::new(kind, format!("key {signature} of the kernel's keyring: {e:?}"))
    };
    let mut payload = Key::zeroed(MOST)?;
    let len = found.map_err(failed)?.read(&mut payload.as_mut_bytes()).map_err(failed)?;
    payload.truncate(len);
    parse(&payload, signature)
}

fn parse(payload: &Key, signature: Signature) -> Result<AuthToken> {
    let bytes = payload.as_bytes();
    let bad =
        |why: &str| Error::new(ErrorKind::BadFile, format!("key {signature} of the kernel's keyring: {why}"));
    if bytes.len() < PAYLOAD || bytes.len() > PAYLOAD + 7 {
        return Err(bad("it is no key of eCryptfs"));
    }
    if bytes[..4] != [4, 0, 0, 0] {
        return Err(bad("it is of another version, or no passphrase"));
    }
    if bytes[712..728] != *signature.to_string().as_bytes() {
        return Err(bad("it says that it is another"));
    }
    let mut salt = [0; 8];
    salt.copy_from_slice(&bytes[729..737]);
    AuthToken::from_key(&Key::new(&bytes[648..712])?, salt, Some(signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The payload that `ecryptfs-add-passphrase` writes.
    fn payload(token: &AuthToken) -> Key {
        let mut bytes = [0; 740];
        bytes[0] = 4;
        bytes[640] = 64;
        bytes[648..712].copy_from_slice(token.key());
        bytes[712..728].copy_from_slice(token.signature().to_string().as_bytes());
        bytes[729..737].copy_from_slice(&token.salt());
        Key::new(&bytes).unwrap()
    }

    #[test]
    fn a_payload_is_the_token_that_it_was_made_of() {
        let token = AuthToken::from_passphrase(b"test", AuthToken::DEFAULT_SALT).unwrap();
        let read = parse(&payload(&token), token.signature()).unwrap();
        assert_eq!((read.key(), read.salt()), (token.key(), token.salt()));
    }

    #[test]
    fn other_payloads_are_refused() {
        let token = AuthToken::from_passphrase(b"test", AuthToken::DEFAULT_SALT).unwrap();
        let good = payload(&token);
        for len in [0, 100, 736, 1024] {
            let mut other = Key::zeroed(len).unwrap();
            let common = len.min(good.len());
            other.as_mut_bytes()[..common].copy_from_slice(&good.as_bytes()[..common]);
            assert_eq!(parse(&other, token.signature()).unwrap_err().kind(), ErrorKind::BadFile, "{len}");
        }
        for at in [0, 2, 715] {
            let mut other = Key::new(good.as_bytes()).unwrap();
            other.as_mut_bytes()[at] ^= 1;
            assert_eq!(parse(&other, token.signature()).unwrap_err().kind(), ErrorKind::BadFile, "{at}");
        }
    }
}
