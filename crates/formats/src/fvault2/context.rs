//! The encryption context: users, each with a KEK wrapped for a passphrase, and volume keys wrapped
//! with that KEK.
//!
//! ```text
//!   passphrase --PBKDF2-HMAC-SHA-256--> key --AES key unwrap--> KEK --AES key unwrap--> volume key
//!   SHA-256(volume key, UUID of the family)[..16] = tweak key
//! ```
//! A recovery key, of characters in groups of four, is one more user's passphrase.

use aes::Aes128;
use aes::cipher::KeyInit;
use aes_kw::AesKw;
use base64ct::{Base64, Encoding};
use underseal_cipher::{Key, Locked};
use underseal_volume::{Hash, Kdf, KdfLimits};

use super::plist::Plist;
use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// Users, and volume keys, that are kept: more are no real volume's.
const MOST: usize = 64;
/// Bytes of a key that is wrapped: 16, and 8 that check them.
const WRAPPED: usize = 24;
/// Characters of a structure's base64; real ones have 380.
const MOST_TEXT: usize = 65536;
/// Bytes of a list of keys; real ones have a few thousand.
pub(super) const MOST_LIST: usize = 1 << 20;

/// A user of the volume.
pub(super) struct User {
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
    kek: [u8; WRAPPED],
}

/// The list of wrapped keys.
pub(super) struct Context {
    pub(super) users: Vec<User>,
    volume_keys: Vec<[u8; WRAPPED]>,
    /// `Complete`, `Converting` and so on; `None` when the list has no conversion status.
    pub(super) conversion: Option<String>,
}

impl Context {
    /// Reads a list.
    ///
    /// Returns `BadHeader` when the list is no text, or a structure is cut, `TooCostly` for a list,
    /// structures or more users than any real volume has, and `Memory`.
    pub(super) fn parse(list: &Key) -> Result<Self> {
        let bytes = list.as_bytes();
        if bytes.len() > MOST_LIST {
            return Err(Error::new(ErrorKind::TooCostly, format!("a list of keys of {} bytes", bytes.len())));
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = std::str::from_utf8(&bytes[..end])
            .map_err(|_| Error::new(ErrorKind::BadHeader, "the list of keys is no text"))?;
        let list = Plist(text);
        let mut context = Self { users: Vec::new(), volume_keys: Vec::new(), conversion: None };
        for element in list.values("PassphraseWrappedKEKStruct") {
            let Some(bytes) = decoded(element.text("data"))? else { continue };
            few(context.users.len())?;
            let fields = Fields(bytes.as_bytes());
            let iterations = fields.le32(168)?;
            if iterations == 0 {
                return Err(Error::new(ErrorKind::BadHeader, "a user's key derivation of no iterations"));
            }
            context.users.push(User {
                salt: fields.bytes(8, 16)?.to_vec(),
                iterations,
                kek: fields.array(32)?,
            });
        }
        for element in list.values("KEKWrappedVolumeKeyStruct") {
            // Of a volume that is not encrypted, or not yet, the structure is empty.
            let Some(bytes) = decoded(element.text("data"))? else { continue };
            few(context.volume_keys.len())?;
            context.volume_keys.push(Fields(bytes.as_bytes()).array(8)?);
        }
        let status = list.value("ConversionStatus").and_then(|element| element.text("string"));
        context.conversion = status.map(str::to_owned);
        Ok(context)
    }

    /// The volume key of 16 bytes, by any user's passphrase, and that user's index.
    ///
    /// Every user is tried before the passphrase is called wrong.
    ///
    /// Returns `NoProtector` when the list has no users, and `WrongPassphrase`, `TooCostly` or
    /// `Memory`.
    pub(super) fn unlock(&self, passphrase: &Key, limits: &KdfLimits) -> Result<(usize, Key)> {
        if self.users.is_empty() || self.volume_keys.is_empty() {
            return Err(Error::new(ErrorKind::NoProtector, "no user's passphrase opens the volume"));
        }
        let mut left = *limits;
        for (nth, user) in self.users.iter().enumerate() {
            let kdf =
                Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: user.iterations, salt: user.salt.clone() };
            let begun = std::time::Instant::now();
            let key = kdf.derive(passphrase.as_bytes(), 16, &left)?;
            left.rounds = left.rounds.saturating_sub(user.iterations.into());
            left.time = left.time.map(|time| time.saturating_sub(begun.elapsed()));
            let Some(kek) = unwrap(&key, &user.kek)? else { continue };
            for wrapped in &self.volume_keys {
                if let Some(volume_key) = unwrap(&kek, wrapped)? {
                    return Ok((nth, volume_key));
                }
            }
            return Err(Error::new(ErrorKind::BadHeader, "the passphrase is right, and opens no volume key"));
        }
        Err(Error::new(ErrorKind::WrongPassphrase, "no user has this passphrase"))
    }
}

/// Fails with `TooCostly` when as many users or volume keys as any real volume has are there before
/// one more.
fn few(before: usize) -> Result<()> {
    if before < MOST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::TooCostly, format!("more than {MOST} users or volume keys")))
}

/// The bytes of a `data` element; none where it is empty or missing.
fn decoded(text: Option<&str>) -> Result<Option<Key>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let bad = || Error::new(ErrorKind::BadHeader, "a wrapped key is no base64");
    if text.len() > MOST_TEXT {
        return Err(Error::new(ErrorKind::TooCostly, format!("a wrapped key of {} characters", text.len())));
    }
    // Long texts are broken into lines.
    let mut packed = Key::zeroed(text.len())?;
    let mut len = 0;
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        packed.as_mut_bytes()[len] = byte;
        len += 1;
    }
    packed.truncate(len);
    let mut out = Key::zeroed(len / 4 * 3)?;
    let decoded = Base64::decode(packed.as_bytes(), out.as_mut_bytes()).map_err(|_| bad())?.len();
    out.truncate(decoded);
    Ok(Some(out))
}

/// AES key unwrap (RFC 3394); none when the check fails.
fn unwrap(key: &Key, wrapped: &[u8; WRAPPED]) -> Result<Option<Key>> {
    let bad = |_| Error::new(ErrorKind::BadHeader, "a wrapping key that is not of 16 bytes");
    let cipher = Locked::new(AesKw::<Aes128>::new_from_slice(key.as_bytes()).map_err(bad)?)?;
    let mut out = Key::zeroed(WRAPPED - 8)?;
    let opened = cipher.unwrap_key(wrapped, out.as_mut_bytes()).is_ok();
    Ok(opened.then_some(out))
}

/// The key of the data: the volume key, and the tweak's, made of it and of the family's UUID.
///
/// Returns `Memory`.
pub(super) fn data_key(volume_key: &Key, family: &[u8; 16]) -> Result<Key> {
    let mut both = Key::zeroed(32)?;
    let (first, second) = both.as_mut_bytes().split_at_mut(16);
    first.copy_from_slice(volume_key.as_bytes());
    second.copy_from_slice(family);
    let tweak = underseal_volume::plain::key_from_passphrase(
        &both,
        &underseal_volume::plain::PassphraseHash { hash: Some(Hash::Sha256), len: None },
        16,
    )?;
    both.as_mut_bytes()[16..].copy_from_slice(tweak.as_bytes());
    Ok(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3394, 4.1.
    #[test]
    fn keys_are_unwrapped_and_wrong_ones_seen() {
        let key: Vec<u8> = (0..16).collect();
        let wrapped = hex::decode("1fa68b0a8112b447aef34bd8fb5a7b829d3e862371d2cfe5").unwrap();
        let wrapped: [u8; WRAPPED] = wrapped.try_into().unwrap();
        let plain = unwrap(&Key::new(&key).unwrap(), &wrapped).unwrap().unwrap();
        assert_eq!(hex::encode_upper(plain.as_bytes()), "00112233445566778899AABBCCDDEEFF");
        assert!(unwrap(&Key::new(&[1; 16]).unwrap(), &wrapped).unwrap().is_none());
    }

    #[test]
    fn derivations_that_cost_too_much_are_refused_before_they_are_done() {
        let user = |iterations| User { salt: vec![7; 16], iterations, kek: [0; WRAPPED] };
        let context = |users| Context { users, volume_keys: vec![[0; WRAPPED]], conversion: None };
        let limits = KdfLimits { rounds: 3000, ..KdfLimits::default() };
        let kind = |users| context(users).unlock(&Key::new(b"x").unwrap(), &limits).unwrap_err().kind();
        assert_eq!(kind(vec![user(u32::MAX)]), ErrorKind::TooCostly);
        assert_eq!(kind(vec![user(1000), user(1000), user(1001)]), ErrorKind::TooCostly);
        assert_eq!(kind(vec![user(1000), user(1000), user(1000)]), ErrorKind::WrongPassphrase);
        assert_eq!(kind(Vec::new()), ErrorKind::NoProtector);
    }

    /// A list in which every key refers to a distant or missing element.
    #[test]
    fn a_list_of_many_references_is_read_in_short_time() {
        let reference = "<key>KEKWrappedVolumeKeyStruct</key><reference IDREF=\"x\"/>";
        let data = Base64::encode_string(&[1; 256]);
        for last in [String::new(), format!("<data ID=\"x\">{data}</data>"), "<data ID=\"x\"></data>".into()]
        {
            let list = Key::new((reference.repeat(15_000) + &last).as_bytes()).unwrap();
            let begun = std::time::Instant::now();
            let parsed = Context::parse(&list).map(|context| context.volume_keys.len());
            let expected = if last.contains(&data) { Err(ErrorKind::TooCostly) } else { Ok(0) };
            assert_eq!(parsed.map_err(|e| e.kind()), expected);
            // Before, this took minutes.
            assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
        }
        let long = format!("<key>KEKWrappedVolumeKeyStruct</key><data>{}</data>", "A".repeat(100_000));
        let error = Context::parse(&Key::new(long.as_bytes()).unwrap()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooCostly);
    }

    #[test]
    fn users_without_iterations_and_structures_that_are_cut_are_refused() {
        let parse = |bytes: &[u8]| {
            let data = Base64::encode_string(bytes);
            let list = format!("<key>PassphraseWrappedKEKStruct</key><data ID=\"1\">{data}</data>");
            Context::parse(&Key::new(list.as_bytes()).unwrap()).map(|context| context.users.len())
        };
        let mut bytes = vec![1; 284];
        assert_eq!(parse(&bytes).unwrap(), 1);
        assert_eq!(parse(&bytes[..171]).unwrap_err().kind(), ErrorKind::BadHeader);
        bytes[168..172].fill(0);
        assert!(parse(&bytes).unwrap_err().to_string().contains("no iterations"));
    }
}
