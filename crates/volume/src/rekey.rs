//! Another key for an open volume: the basis of dm-crypt's messages `key wipe` and `key set`.
//!
//! ```text
//!   Volume --without_key()--> Keyless --with_key(key)--> Volume     the same bytes and cipher
//!   Header --key_check()----> KeyCheck --confirm(key)               only a header can check a key
//! ```

use std::fmt;
use std::sync::Arc;

use underseal_cipher::{Key, SectorCipher};

use crate::kdf::Budget;
use crate::{
    CipherParameters, Error, ErrorKind, Kdf, KdfLimits, Result, SegmentKind, Volume, cipher_parameters, kdf,
};

/// A check of a volume's key without the key: its header's digest.
#[derive(Debug, Clone)]
pub struct KeyCheck {
    pub(crate) kdf: Kdf,
    pub(crate) digest: Vec<u8>,
    /// The key's length: a key and the same key with zeros behind it have the same digest.
    pub(crate) len: usize,
}

impl KeyCheck {
    /// Checks that this is the volume's key. The check takes as long as the header's digest needs,
    /// within [`KdfLimits`].
    ///
    /// # Errors
    /// `WrongKey` when it is another key; `TooCostly`, `Memory`.
    pub fn confirm(&self, key: &Key) -> Result<()> {
        let budget = Budget::new(KdfLimits::default());
        // Keys are compared in constant time.
        if key.len() == self.len
            && kdf::to_key(&self.digest)? == budget.derive(&self.kdf, key.as_bytes(), self.digest.len())?
        {
            return Ok(());
        }
        Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume"))
    }
}

/// A volume without its key: it keeps the layout and the parameters of the cipher, and can do
/// nothing else.
pub struct Keyless {
    /// The volume, with the null cipher in place of the missing cipher. It is never returned.
    volume: Volume,
    /// The segment with the missing cipher.
    crypt: usize,
    cipher_parameters: Arc<CipherParameters>,
}

impl Volume {
    /// Returns the same volume without its key.
    ///
    /// # Errors
    /// `Unsupported` unless exactly one segment is encrypted: a message goes to one target.
    pub fn without_key(&self) -> Result<Keyless> {
        let segments = self.segments().iter().enumerate();
        let mut crypts = segments.filter_map(|(i, s)| Some((i, s.as_stored()?.cipher_parameters.as_ref()?)));
        let (crypt, cipher_parameters) = match (crypts.next(), crypts.count()) {
            (Some(only), 0) => only,
            (None, _) => return Err(refuse("nothing of it is encrypted, so it has no key")),
            (Some(_), more) => {
                let many = more + 1;
                return Err(refuse(&format!(
                    "it has {many} encrypted segments; a key message goes to one target"
                )));
            }
        };
        let cipher_parameters = cipher_parameters.clone();
        let volume = self.with_cipher(crypt, cipher_parameters::null(cipher_parameters.sector_size)?)?;
        Ok(Keyless { volume, crypt, cipher_parameters })
    }

    fn with_cipher(&self, number: usize, cipher: Arc<dyn SectorCipher>) -> Result<Self> {
        let mut segments = self.segments().to_vec();
        if let SegmentKind::Stored(stored) = &mut segments[number].kind {
            stored.cipher = cipher;
        }
        let volume = Self::new(segments)?.with_discards(self.allow_discards());
        Ok(volume.with_dispatch(self.dispatch()))
    }
}

impl Keyless {
    /// Returns the parameters that the key must fit.
    pub fn cipher_parameters(&self) -> &CipherParameters {
        &self.cipher_parameters
    }

    /// Returns the volume under another key. Only its data can tell whether it is the right key.
    ///
    /// # Errors
    /// `BadOption` when its length is not the old key's; `Memory`; the kinds of opening the volume.
    pub fn with_key(&self, key: &Key) -> Result<Volume> {
        let size = self.cipher_parameters.key_size;
        if key.len() != size {
            let context =
                format!("the key has {} bytes, the volume's has {size}: it may not change", key.len());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        self.volume.with_cipher(self.crypt, self.cipher_parameters.build(key)?)
    }
}

impl fmt::Debug for Keyless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyless")
            .field("crypt", &self.crypt)
            .field("cipher_parameters", &self.cipher_parameters)
            .finish_non_exhaustive()
    }
}

fn refuse(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

#[cfg(test)]
pub(crate) mod tests {
    use underseal_cipher::InOutBuf;

    use super::*;
    use crate::table::Table;

    /// Two keys of 32 bytes.
    pub(crate) const HEX: [&str; 2] = [
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "ff0102030405060708090a0b0c0d0e0fee1112131415161718191a1b1c1d1e1f",
    ];

    pub(crate) fn volume(table: &str) -> Volume {
        let table = Table::parse(table).unwrap();
        table.volume(&vec![1 << 30; table.bases().len()]).unwrap()
    }

    pub(crate) fn key(hex: &str) -> Key {
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        Key::new(&bytes).unwrap()
    }

    /// Returns the volume's ciphertext of a block of zeros at `offset`.
    fn encrypted(volume: &Volume, offset: u64) -> Vec<u8> {
        let segment = &volume.segments()[volume.segment_index(offset).unwrap()];
        let (cipher, sector) = segment.cipher(offset).unwrap();
        let mut block = vec![0; cipher.sector_size().bytes()];
        cipher.encrypt(sector, InOutBuf::from(&mut block[..]));
        block
    }

    #[test]
    fn the_new_key_gives_what_opening_with_it_gives() {
        for line in [
            "0 2048 crypt aes-xts-plain64 KEY 0 a 0",
            "0 2048 crypt aes-cbc-essiv:sha256 KEY 8 a 16 3 allow_discards sector_size:4096 iv_large_sectors",
            "0 64 linear b 0\n64 2048 crypt aes-xts-plain64 KEY 32 a 0\n2112 8 zero",
        ] {
            let [first, second] = HEX.map(|hex| volume(&line.replace("KEY", hex)));
            let keyless = first.without_key().unwrap();
            let changed = keyless.with_key(&key(HEX[1])).unwrap();
            assert_eq!(format!("{changed:?}"), format!("{second:?}"));
            let crypt =
                |s: &&crate::Segment| s.as_stored().is_some_and(|stored| stored.cipher_parameters.is_some());
            let at = changed.segments().iter().find(crypt).unwrap().start;
            assert_eq!(encrypted(&changed, at), encrypted(&second, at), "{line}");
            assert_ne!(encrypted(&changed, at), encrypted(&first, at), "{line}");
            let back = changed.without_key().unwrap().with_key(&key(HEX[0])).unwrap();
            assert_eq!(encrypted(&back, at), encrypted(&first, at), "{line}");
        }
    }

    #[test]
    fn a_key_of_another_size_is_refused() {
        let keyless = volume(&format!("0 8 crypt aes-xts-plain64 {} 0 a 0", HEX[0])).without_key().unwrap();
        // A key of 64 bytes would be an aes-xts key, too.
        for len in [0, 31, 33, 64] {
            let error = keyless.with_key(&Key::zeroed(len).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadOption);
            assert!(error.to_string().contains("32"), "{error}");
        }
    }

    #[test]
    fn only_a_volume_with_one_encrypted_segment_takes_another_key() {
        for (table, why) in [
            ("0 8 linear a 0".to_owned(), "no key"),
            (
                format!("0 8 crypt aes-xts-plain64 {0} 0 a 0\n8 8 crypt aes-xts-plain64 {0} 0 a 8", HEX[0]),
                "one target",
            ),
        ] {
            let error = volume(&table).without_key().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_kept_without_a_key_shows_none() {
        let keyless = volume(&format!("0 8 crypt aes-xts-plain64 {} 0 a 0", HEX[0])).without_key().unwrap();
        assert!(keyless.volume.segments()[0].cipher(0).unwrap().0.is_null());
        assert!(!format!("{keyless:?}").contains("0001"));
    }
}
