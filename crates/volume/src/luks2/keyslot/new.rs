//! A new keyslot: its parameters, its area's bytes, its JSON.

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};
use underseal_cipher::{CipherSpec, Key, SectorSize};

use crate::area::KeyArea;
use crate::format::{bad, try_cipher};
use crate::kdf::Kdf;
use crate::{Hash, KdfLimits, Pbkdf, Result, af};

/// A keyslot with measured parameters.
pub(crate) struct NewSlot {
    cipher: CipherSpec,
    wrapping_size: usize,
    hash: Hash,
    kdf: Kdf,
}

impl NewSlot {
    /// Chooses the parameters, which may take time. The area has the data's cipher where that is
    /// possible: an area is never authenticated nor has a null cipher.
    pub(crate) fn settle_like_data(data: &CipherSpec, hash: Hash, pbkdf: &Pbkdf) -> Result<Self> {
        if refused(data).is_none() && stands_alone(data) {
            return Self::settle(data, None, hash, pbkdf);
        }
        let usual = "aes-xts-plain64".parse().expect("a constant that parses");
        Self::settle(&usual, None, hash, pbkdf)
    }

    /// Chooses the parameters with a given cipher for the area, and the length of its key; `None`
    /// for the cipher's largest.
    pub(crate) fn settle(
        cipher: &CipherSpec,
        key_size: Option<usize>,
        hash: Hash,
        pbkdf: &Pbkdf,
    ) -> Result<Self> {
        if let Some(why) = refused(cipher) {
            return Err(bad(format!("{cipher} {why}: a keyslot's area cannot have it")));
        }
        let sizes = underseal_cipher::key_sizes(cipher);
        let sizes = sizes.map_err(|e| crate::cipher_parameters::cipher_error(cipher, e))?;
        let wrapping_size = key_size.or(sizes.last().copied()).unwrap_or(0);
        if !sizes.contains(&wrapping_size) {
            return Err(bad(format!("a key of {} bits does not fit {cipher}", wrapping_size * 8)));
        }
        Ok(Self { cipher: cipher.clone(), wrapping_size, hash, kdf: pbkdf.settle(hash, wrapping_size)? })
    }

    /// Returns the bytes of the area.
    pub(crate) fn seal(&self, passphrase: &Key, key: &Key) -> Result<Key> {
        let wrapping = self.kdf.derive(passphrase.as_bytes(), self.wrapping_size, &KdfLimits::NONE)?;
        try_cipher(&self.cipher, &wrapping, SectorSize::S512)?;
        KeyArea { spec: &self.cipher, hash: self.hash }.seal(&wrapping, key)
    }

    /// Returns the JSON of the keyslot with its area at byte `offset`.
    pub(crate) fn json(&self, key_len: usize, offset: u64) -> Value {
        json!({
            "type": "luks2",
            "key_size": key_len,
            "af": { "type": "luks1", "stripes": af::STRIPES, "hash": self.hash.name() },
            "area": {
                "type": "raw",
                "offset": offset.to_string(),
                "size": area_size(key_len).to_string(),
                "encryption": self.cipher.to_string(),
                "key_size": self.wrapping_size,
            },
            "kdf": kdf_json(&self.kdf),
        })
    }
}

fn kdf_json(kdf: &Kdf) -> Value {
    let salt = Base64::encode_string(kdf.salt());
    match kdf {
        Kdf::Pbkdf2 { hash, iterations, .. } => {
            json!({ "type": "pbkdf2", "hash": hash.name(), "iterations": iterations, "salt": salt })
        }
        Kdf::Argon2 { passes, memory_kib, lanes, .. } => json!({
            "type": kdf.kind().name(),
            "time": passes,
            "memory": memory_kib,
            "cpus": lanes,
            "salt": salt,
        }),
    }
}

/// Returns true when a cipher needs neither tags nor stored IVs, which authenticated volumes have.
fn stands_alone(cipher: &CipherSpec) -> bool {
    let sizes = underseal_cipher::key_sizes(cipher).unwrap_or_default();
    let Some(Ok(mut key)) = sizes.last().map(|size| Key::zeroed(*size)) else { return false };
    // The halves of an XTS key must differ.
    key.as_mut_bytes().iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, value)| *byte = value);
    underseal_cipher::build(cipher, &key, SectorSize::S512).is_ok()
}

/// Returns why a keyslot's area cannot have this cipher, if so.
fn refused(cipher: &CipherSpec) -> Option<&'static str> {
    match cipher.to_string() {
        _ if cipher.is_null() => Some("encrypts nothing"),
        name if name.starts_with("capi:") => Some("is in the kernel's own form"),
        _ => None,
    }
}

/// Returns the length of a keyslot's area: its stripes in whole pages.
pub(crate) fn area_size(key_len: usize) -> u64 {
    af::split_len(key_len).next_multiple_of(4096) as u64
}
