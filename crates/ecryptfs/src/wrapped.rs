//! Wrapped passphrases (`~/.ecryptfs/wrapped-passphrase`): a mount's passphrase, encrypted with a
//! login's passphrase.
//!
//! ```text
//!   version 1                            signature, 16 hex digits   ECB(passphrase, zero-padded)
//!   version 2    ':' 2  salt[8]          signature, 16 hex digits   ECB(passphrase, zero-padded)
//! ```
//! The signature belongs to the wrapping key; the cipher is AES-128 under the first 16 bytes of
//! that key. Version 1 has a fixed salt.

use underseal_cipher::Key;

use crate::{AuthToken, Cipher, Error, ErrorKind, Result, random};

/// The length of the longest such file, in either version.
pub const MAX_FILE: usize = 2 + 8 + 16 + AuthToken::MAX_PASSPHRASE + 16;

const VERSION_2: [u8; 2] = [b':', 2];

/// Decrypts a file with the wrapping passphrase.
///
/// # Errors
/// `BadFile`; `WrongPassphrase`.
pub fn unwrap(file: &[u8], wrapping: &[u8]) -> Result<Key> {
    let (salt, rest) = match file.strip_prefix(&VERSION_2) {
        Some(rest) => {
            let (salt, rest) = rest.split_first_chunk::<8>().ok_or_else(|| bad("it is cut"))?;
            (*salt, rest)
        }
        None => (AuthToken::DEFAULT_SALT, file),
    };
    let (signature, sealed) = rest.split_first_chunk::<16>().ok_or_else(|| bad("it is cut"))?;
    let signature = std::str::from_utf8(signature).ok().and_then(|text| text.parse().ok());
    let signature = signature.ok_or_else(|| bad("its signature is not 16 hex digits"))?;
    if sealed.is_empty() || !sealed.len().is_multiple_of(16) || file.len() > MAX_FILE {
        return Err(bad(&format!("{} bytes are no passphrase", sealed.len())));
    }
    let token = AuthToken::from_passphrase(wrapping, salt)?;
    if token.signature() != signature {
        return Err(Error::new(ErrorKind::WrongPassphrase, "the wrapping passphrase is wrong"));
    }
    let mut passphrase = Key::new(sealed)?;
    token.blocks(Cipher::DEFAULT)?.decrypt(passphrase.as_mut_bytes());
    let len = passphrase.as_bytes().iter().position(|&byte| byte == 0).unwrap_or(passphrase.len());
    if !(1..=AuthToken::MAX_PASSPHRASE).contains(&len)
        || passphrase.as_bytes()[len..].iter().any(|&byte| byte != 0)
    {
        return Err(bad("its contents are no passphrase"));
    }
    passphrase.truncate(len);
    Ok(passphrase)
}

/// Returns a new file, of version 2.
///
/// # Errors
/// `BadOption` for an empty or too long passphrase, or with a zero byte.
pub fn wrap(passphrase: &Key, wrapping: &[u8]) -> Result<Vec<u8>> {
    let mut salt = [0; 8];
    random::fill(&mut salt)?;
    let body = seal(passphrase, wrapping, salt)?;
    Ok([&VERSION_2[..], &salt, &body].concat())
}

/// Returns a new file, of version 1: for old tools only, since its salt is fixed.
///
/// # Errors
/// The kinds of [`wrap`].
pub fn wrap_version_1(passphrase: &Key, wrapping: &[u8]) -> Result<Vec<u8>> {
    seal(passphrase, wrapping, AuthToken::DEFAULT_SALT)
}

fn seal(passphrase: &Key, wrapping: &[u8], salt: [u8; 8]) -> Result<Vec<u8>> {
    let len = passphrase.len();
    if !(1..=AuthToken::MAX_PASSPHRASE).contains(&len) || passphrase.as_bytes().contains(&0) {
        let context =
            format!("a passphrase of eCryptfs has 1 to 64 bytes, none of them zero; this one has {len}");
        return Err(Error::new(ErrorKind::BadOption, context));
    }
    let token = AuthToken::from_passphrase(wrapping, salt)?;
    let mut padded = Key::zeroed(len.next_multiple_of(16))?;
    padded.as_mut_bytes()[..len].copy_from_slice(passphrase.as_bytes());
    token.blocks(Cipher::DEFAULT)?.encrypt(padded.as_mut_bytes());
    Ok([token.signature().to_string().as_bytes(), padded.as_bytes()].concat())
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::BadFile, format!("a damaged wrapped passphrase: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_comes_back_and_another_does_not_open_it() {
        for passphrase in ["a", "exactly 16 bytes", &"long ".repeat(12), &"x".repeat(64)] {
            let key = Key::new(passphrase.as_bytes()).unwrap();
            for file in [wrap(&key, b"login").unwrap(), wrap_version_1(&key, b"login").unwrap()] {
                assert!(file.len() <= MAX_FILE);
                assert!(unwrap(&file, b"login").unwrap() == key);
                assert_eq!(unwrap(&file, b"other").unwrap_err().kind(), ErrorKind::WrongPassphrase);
            }
        }
    }

    #[test]
    fn a_file_of_ecryptfs_wrap_passphrase_opens() {
        let file = hex::decode(
            "3a02456684d91d68178933646464666637636236383938653061d89562a00ea47739bfaa0b2b184fab4c",
        );
        assert_eq!(unwrap(&file.unwrap(), b"login").unwrap().as_bytes(), b"mount passphrase");
    }

    #[test]
    fn damaged_files_are_refused() {
        let key = Key::new(b"mount").unwrap();
        let file = wrap(&key, b"login").unwrap();
        for len in 0..file.len() {
            assert_eq!(unwrap(&file[..len], b"login").unwrap_err().kind(), ErrorKind::BadFile, "{len}");
        }
        assert_eq!(
            unwrap(&[&file[..], &[0; 512]].concat(), b"login").unwrap_err().kind(),
            ErrorKind::BadFile
        );
        for passphrase in [&b""[..], &[b'x'; 65], b"a\0b"] {
            assert_eq!(
                wrap(&Key::new(passphrase).unwrap(), b"login").unwrap_err().kind(),
                ErrorKind::BadOption
            );
        }
    }
}
