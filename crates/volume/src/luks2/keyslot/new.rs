//! A keyslot that is made: its parameters, its area's bytes, its words in the metadata.

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};
use underseal_cipher::{CipherSpec, Key, SectorSize};

use crate::area::KeyArea;
use crate::format::try_cipher;
use crate::kdf::Kdf;
use crate::{Hash, KdfLimits, Pbkdf, Result, af};

/// A keyslot whose cost is settled.
pub(crate) struct NewSlot {
    cipher: CipherSpec,
    wrapping_size: usize,
    hash: Hash,
    kdf: Kdf,
}

impl NewSlot {
    /// Decides what it costs, which may take time. `data_cipher` is the data's: the area has the same where that does.
    pub(crate) fn settle(data_cipher: &CipherSpec, hash: Hash, pbkdf: &Pbkdf) -> Result<Self> {
        // The area is never authenticated nor null; where the data's cipher does not do, AES-XTS does.
        let own = !data_cipher.is_null() && !data_cipher.to_string().starts_with("capi:");
        let default = || "aes-xts-plain64".parse().expect("a constant that parses");
        let cipher: CipherSpec = if own { data_cipher.clone() } else { default() };
        let sizes = underseal_cipher::key_sizes(&cipher);
        let sizes = sizes.map_err(|e| crate::recipe::cipher_error(&cipher, e))?;
        let wrapping_size = sizes.last().copied().unwrap_or(0);
        Ok(Self { cipher, wrapping_size, hash, kdf: pbkdf.settle(hash, wrapping_size)? })
    }

    /// The bytes of its area.
    pub(crate) fn seal(&self, passphrase: &Key, key: &Key) -> Result<Key> {
        let wrapping = self.kdf.derive(passphrase.as_bytes(), self.wrapping_size, &KdfLimits::NONE)?;
        try_cipher(&self.cipher, &wrapping, SectorSize::S512)?;
        KeyArea { spec: &self.cipher, hash: self.hash }.seal(&wrapping, key)
    }

    /// What the metadata says of it when its area begins at byte `offset`.
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

/// The length of a keyslot's area: its stripes in whole pages.
pub(crate) fn area_size(key_len: usize) -> u64 {
    af::split_len(key_len).next_multiple_of(4096) as u64
}
