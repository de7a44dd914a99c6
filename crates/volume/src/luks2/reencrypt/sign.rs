//! A digest for a reencryption whose metadata have none: cryptsetup before 2.4.3 wrote none, and an
//! attacker who can write to the header can remove it.
//!
//! Signing gives the metadata the same trust as if the owner had written them, so the owner
//! decides. The regular segments stay as they are: they must have a shape that the signed metadata
//! allow.

use serde_json::Value;

use super::arrange::{self, Document};
use super::begin::iterations;
use super::ledger::ResumeOptions;
use super::shape::{self, ShapeInput};
use super::slot::{KIND, bad, is_reencryption, is_version_1, lacks_digest};
use crate::lock::{LockTo, ReencryptionLock};
use crate::luks2::Header;
use crate::luks2::metadata::Metadata;
use crate::luks2::update::words;
use crate::reencrypt::Mode;
use crate::{Result, Target, VolumeKey};

impl Header {
    /// Returns true when the metadata of the reencryption in progress have the version without a
    /// digest, or lack their digest.
    pub fn has_unsigned_reencryption(&self) -> bool {
        is_version_1(self.metadata()) || lacks_digest(self.metadata())
    }

    /// Writes the digest over the metadata of a reencryption that has none, and the requirement of
    /// the version that has one. `data_size` is the size of the data device in bytes. A digest of
    /// version 1 is replaced; cryptsetup's `repair` does the same.
    ///
    /// # Errors
    /// `BadHeader`, `BadLayout`, `TooSmall`, `NullCipher`, `Unsupported` when the signed
    /// reencryption could not be resumed; `WrongPassphrase` without both keys; `NoRoom`; `Busy`
    /// when another process resumes the reencryption or changed the header; `Io`, `Memory`.
    pub fn sign_reencryption(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        data_size: u64,
        options: &ResumeOptions,
    ) -> Result<()> {
        let _lock = ReencryptionLock::take(self.uuid(), LockTo::Change)?;
        let header_size = self.stored.binary.size;
        let &ResumeOptions { detached, allow_null, hot_zone } = options;
        let given = ShapeInput { data_size, hot_zone, allow_null, detached };
        let edit = |document: &mut Document, metadata: &Metadata| {
            let slot = slot_of(metadata)?;
            let of_data = metadata.digests.iter().find(|(_, digest)| !digest.segments.is_empty());
            let (&of_data, _) = of_data.ok_or_else(|| bad("digests: none of a key of the data"))?;
            forget_digests(document, slot)?;
            require(document, 2)?;
            arrange::add_digest(document, slot, iterations(metadata, of_data))?;
            let (_, of) = arrange::parse(document, header_size)?;
            if of.mode == Mode::Decrypt && of.resilience.shift.is_some() {
                require(document, 3)?;
            }
            arrange::sign(document, header_size, key)?;
            let (metadata, of) = arrange::parse(document, header_size)?;
            match shape::stage(&metadata, &of) {
                // The old key may be gone.
                super::Stage::Final => shape::read_final(&metadata, &of, key, given).map(drop),
                super::Stage::Clean | super::Stage::Hot => shape::read(&metadata, &of, key, given).map(drop),
            }
        };
        self.update(on, edit, |()| Ok(()))
    }
}

/// Returns the only keyslot of type `reencrypt`.
fn slot_of(metadata: &Metadata) -> Result<u32> {
    let mut slots = metadata.keyslots.iter().filter(|(_, slot)| slot.kind == KIND);
    match (slots.next(), slots.next()) {
        (Some((&slot, _)), None) => Ok(slot),
        _ => Err(bad(format!("keyslots: not exactly one of type \"{KIND}\""))),
    }
}

/// Removes digests that belong to the keyslot and to no segment.
fn forget_digests(document: &mut Document, slot: u32) -> Result<()> {
    let slot = slot.to_string();
    let is_its = |digest: &Value| {
        let list = |part: &str| digest[part].as_array().map(Vec::as_slice).unwrap_or_default();
        list("segments").is_empty() && matches!(list("keyslots"), [only] if *only == slot)
    };
    words::object(document.get_mut("digests"), "digests")?.retain(|_, digest| !is_its(digest));
    Ok(())
}

/// Changes the requirement of the reencryption to a version.
fn require(document: &mut Document, version: u8) -> Result<()> {
    let config = words::object(document.get_mut("config"), "config")?;
    let requirements = words::object(config.get_mut("requirements"), "config.requirements")?;
    let named = requirements.get_mut("mandatory").and_then(Value::as_array_mut);
    let named = named.ok_or_else(|| words::missing("config.requirements"))?;
    for name in named.iter_mut().filter(|name| name.as_str().is_some_and(is_reencryption)) {
        *name = arrange::requirement(version).into();
    }
    Ok(())
}
