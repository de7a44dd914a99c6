//! AES-256-CCM as BitLocker wraps its keys: a nonce of 12 bytes, a tag of 16, no associated data
//! (SP 800-38C).

use aes::Aes256;
use ccm::Ccm;
use ccm::aead::inout::InOutBuf;
use ccm::aead::{AeadInOut, KeyInit};
use ccm::consts::{U12, U16};
use underseal_cipher::{Key, Locked};

use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// Nonce and tag before the data.
pub(crate) const HEAD: usize = 28;

/// The fields before an unwrapped key: its size with these fields, a version, its method.
pub(crate) const KEY_HEAD: usize = 12;

/// Decrypts a value of nonce, tag and data, or returns `None` when the tag is not that of this key.
///
/// Returns `BadHeader` when the value is shorter than nonce and tag, and `Memory`.
pub(crate) fn open(key: &Key, value: &[u8]) -> Result<Option<Key>> {
    let Some((head, data)) = value.split_at_checked(HEAD) else {
        return Err(Error::new(ErrorKind::BadHeader, "a wrapped key without nonce and tag"));
    };
    let mut plain = Key::new(data)?;
    let cipher = Ccm::<Aes256, U16, U12>::new_from_slice(key.as_bytes());
    let cipher =
        cipher.map_err(|_| Error::new(ErrorKind::BadHeader, "a wrapping key that is not of 32 bytes"))?;
    let cipher = Locked::new(cipher)?;
    let (nonce, tag) = head.split_at(12);
    let (nonce, tag): ([u8; 12], [u8; 16]) = (Fields(nonce).array(0)?, Fields(tag).array(0)?);
    let opened =
        cipher.decrypt_inout_detached(&nonce.into(), &[], InOutBuf::from(plain.as_mut_bytes()), &tag.into());
    Ok(opened.is_ok().then_some(plain))
}

/// The key within an unwrapped value, without the 12 bytes before it.
///
/// Returns `BadHeader` when these bytes do not fit the key, and `Memory`.
pub(crate) fn key(plain: &Key, what: &str) -> Result<Key> {
    let bytes = plain.as_bytes();
    let fields = Fields(bytes);
    // Of the size 16 bits are the size in every version.
    if bytes.len() < KEY_HEAD || usize::from(fields.le16(0)?) != bytes.len() || fields.le16(4)? != 1 {
        return Err(Error::new(ErrorKind::BadHeader, format!("the {what} is wrapped with a wrong head")));
    }
    Ok(Key::new(&bytes[KEY_HEAD..])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_unwrapped_and_a_wrong_one_seen_by_the_tag() {
        let bytes = |text: &str| hex::decode(text).unwrap();
        let mut value: Vec<u8> = (0..12).collect();
        value.extend(bytes("137c07d402d1920865ae61b79aa29bfa"));
        value.extend(bytes(
            "a6d5b8163f2fc997afe9b1238db1dec7b9f190f2b1fcd232e9280dda0589b0e051595ce32a415b1f7f1d9589",
        ));
        let wrapping: Vec<u8> = (0..32).collect();
        let plain = open(&Key::new(&wrapping).unwrap(), &value).unwrap().unwrap();
        let expected: Vec<u8> = (0x80..0xa0).collect();
        assert_eq!(key(&plain, "VMK").unwrap().as_bytes(), expected);
        assert!(open(&Key::new(&[7; 32]).unwrap(), &value).unwrap().is_none());
        value[40] ^= 1;
        assert!(open(&Key::new(&wrapping).unwrap(), &value).unwrap().is_none());
        assert_eq!(
            open(&Key::new(&wrapping).unwrap(), &value[..27]).unwrap_err().kind(),
            ErrorKind::BadHeader
        );
    }

    #[test]
    fn a_key_whose_head_gives_another_size_is_refused() {
        let mut plain = Key::new(&[0; 44]).unwrap();
        plain.as_mut_bytes()[..6].copy_from_slice(&[44, 0, 0, 0, 1, 0]);
        assert!(key(&plain, "VMK").is_ok());
        plain.as_mut_bytes()[0] = 43;
        assert!(key(&plain, "VMK").unwrap_err().to_string().contains("VMK"));
        assert!(key(&Key::new(&[5; 5]).unwrap(), "VMK").is_err());
    }
}
