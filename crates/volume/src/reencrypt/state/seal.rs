//! Proofs of the right keys, and the seal against forged documents.
//!
//! ```text
//!   key --PBKDF2-HMAC-SHA512(salt, iterations)--> 64 bytes: check (stored) | share (never stored)
//!   seal key = SHA-256(old share, new share)      seal = HMAC-SHA256(seal key, document)
//! ```

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroize;

use crate::info::hex;
use crate::kdf::{self, Budget};
use crate::{Error, ErrorKind, Hash, Kdf, Key, Result, random};

const HALF: usize = 32;

/// The proof of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyProof {
    iterations: u32,
    salt: String,
    check: String,
}

impl KeyProof {
    /// Returns the proof of a key.
    ///
    /// Fails with `TooCostly`, `Memory` and `Io`.
    pub(super) fn new(key: &Key, iterations: u32, budget: &Budget) -> Result<Self> {
        let salt = random::bytes::<HALF>()?;
        let mut proof = Self { iterations, salt: Base64::encode_string(&salt), check: String::new() };
        let derived = proof.derive(key, budget)?;
        proof.check = Base64::encode_string(&derived.as_bytes()[..HALF]);
        Ok(proof)
    }

    /// Returns the key's share of the seal, if it is the right key.
    ///
    /// Fails with `WrongKey`, `BadHeader`, `TooCostly` and `Memory`.
    pub(super) fn share(&self, key: &Key, budget: &Budget) -> Result<Key> {
        let derived = self.derive(key, budget)?;
        let (check, share) = derived.as_bytes().split_at(HALF);
        // Keys are compared in constant time.
        if kdf::to_key(&decode(&self.check)?)? != kdf::to_key(check)? {
            return Err(Error::new(ErrorKind::WrongKey, "this is not the key that the state was made with"));
        }
        kdf::to_key(share)
    }

    fn derive(&self, key: &Key, budget: &Budget) -> Result<Key> {
        let salt = decode(&self.salt)?;
        if self.iterations == 0 || salt.len() != HALF {
            return Err(Error::new(
                ErrorKind::BadHeader,
                "a key's proof has no rounds, or a salt of another length",
            ));
        }
        let kdf = Kdf::Pbkdf2 { hash: Hash::Sha512, iterations: self.iterations, salt };
        budget.derive(&kdf, key.as_bytes(), 2 * HALF)
    }
}

/// The key that makes and confirms seals.
pub(super) struct Seal(Key);

impl Seal {
    /// Returns the seal of both keys' shares, in order.
    ///
    /// Fails with `BadHeader` without any key, since the seal would prove nothing then, and with
    /// `Memory`.
    pub(super) fn new(shares: &[Key]) -> Result<Self> {
        if shares.is_empty() {
            return Err(Error::new(ErrorKind::BadHeader, "neither form of the volume has a key"));
        }
        let parts: Vec<&[u8]> = shares.iter().map(Key::as_bytes).collect();
        let mut digest = Hash::Sha256.digest(&parts);
        let key = kdf::to_key(&digest);
        digest.zeroize();
        key.map(Self)
    }

    /// Returns the digits of a document's seal.
    ///
    /// Fails with `Memory`.
    pub(super) fn of(&self, json: &str) -> Result<String> {
        let mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes());
        let mut mac = mac.map_err(|e| Error::new(ErrorKind::Memory, "no seal").with_source(e))?;
        mac.update(json.as_bytes());
        Ok(hex(&mac.finalize().into_bytes()))
    }

    /// Fails with `Untrusted`.
    pub(super) fn confirm(&self, json: &str, digits: &str) -> Result<()> {
        let right = kdf::to_key(self.of(json)?.as_bytes())? == kdf::to_key(digits.as_bytes())?;
        let forged = "the state was changed by somebody who does not have the volume's keys";
        if right { Ok(()) } else { Err(Error::new(ErrorKind::Untrusted, forged)) }
    }
}

fn decode(text: &str) -> Result<Vec<u8>> {
    Base64::decode_vec(text)
        .map_err(|_| Error::new(ErrorKind::BadHeader, "a key's proof holds something that is not base64"))
}
