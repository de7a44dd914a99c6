//! LUKS2 (LUKS2 On-Disk Format Specification 1.1).
//!
//! ```text
//!   binary header --+-- JSON area      in two copies                        binary, json, store
//!                   |     keyslots     passphrase -> area's key -> volume key   keyslot
//!                   |     digests      check of the volume key                  keyslot
//!                   |     segments     place and cipher of the data             activate
//!                   |     tokens       other sources of passphrases
//!   keyslot areas --+
//!   data
//! ```
//!
//! `update` is the only way to change a header; the changes themselves are in `update/`.

pub(crate) mod activate;
pub(crate) mod binary;
mod check;
mod describe;
mod format;
mod integrity;
pub(crate) use integrity::{mac_key, tag_size};
mod json;
pub(crate) mod keyslot;
pub(crate) mod metadata;
mod node;
mod reencrypt;
pub(crate) mod store;
mod tokens;
mod update;

use std::ops::Range;

use uuid::Uuid;

pub(crate) use binary::{HeaderCopy, LEN as BINARY_LEN, SECOND_MAGIC, SIZES as SECOND_PLACES};
pub(crate) use format::{data_begins, format};
pub use json::json_bytes;
pub use reencrypt::{
    BeginOptions, DecryptOptions, EncryptOptions, Ledger, NewKey, NewVolume, OverwrittenStart, Passphrase,
    ResumeOptions, Stage, Status, UnfinishedStart,
};
pub(crate) use store::Copies;
pub use tokens::{TokenChoice, TokenToTry};
pub use update::tokens::{NewToken, token_from_json};

use crate::{
    ActivateOptions, HeaderDigest, Info, IntegrityLayer, Key, KeyCheck, ReadAt, Result, Target,
    UnlockOptions, Unlocked, Volume, VolumeKey, storage,
};

/// A LUKS2 header as read from disk.
pub struct Header {
    stored: store::Stored,
    /// The header is on stable storage as it was read: this process has secured or written it.
    is_secured: bool,
}

impl Header {
    /// Reads the header from a file, a device or bytes; returns `None` without a trace of one.
    ///
    /// Both copies are checked, and the newer sound one is used; if the first is bad, the second is
    /// looked for in all of its nine places. A bad or stale copy next to a good one is reported by
    /// [`Header::damage`].
    ///
    /// # Errors
    /// `Ambiguous` when a second copy exists, and the device begins with another format's
    /// signature; `BadHeader` when copies exist but none is sound, `TooSmall` when the file ends
    /// within them, `Io`.
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        Ok(store::read(from)?.map(Self::of))
    }

    fn of(stored: store::Stored) -> Self {
        Self { stored, is_secured: false }
    }

    /// Returns the bytes by which each of the two copies is known as this volume's, with their
    /// offsets: the magic and the UUID.
    pub fn copies(&self) -> [Vec<(u64, Vec<u8>)>; 2] {
        let binary = &self.stored.binary;
        [HeaderCopy::First, HeaderCopy::Second].map(|copy| {
            let at = copy.offset(binary.size);
            vec![(at, copy.magic().into()), (at + binary::UUID.start as u64, binary.uuid.field())]
        })
    }

    /// Describes the fault of one of the two copies, if one is bad.
    pub fn damage(&self) -> Option<&str> {
        self.stored.damage.as_ref().map(|damage| damage.why.as_str())
    }

    /// Returns the range of the bad copy, if one is bad.
    pub(crate) fn bad_copy(&self) -> Option<Range<u64>> {
        let store::Stored { binary, damage, .. } = &self.stored;
        let at = damage.as_ref()?.place.offset(binary.size);
        Some(at..at + binary.size)
    }

    /// Rewrites a bad or stale copy from the good one, with a fresh salt, under the header's lock.
    ///
    /// # Errors
    /// `Ambiguous` when the bad copy's place may have another format's bytes; `Busy` when another
    /// program has changed the header since it was read; `Io`.
    pub fn repair(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::repair(to, &self.stored)?;
        self.stored.damage = None;
        Ok(())
    }

    /// Reads a header of which only the second copy is left, whatever is in place of the first.
    pub(crate) fn read_over(from: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        Ok(store::read_over(from)?.map(Self::of))
    }

    /// Repairs as [`Header::repair`], whatever is in place of the bad copy.
    pub(crate) fn repair_over(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::repair_over(to, &self.stored)?;
        self.stored.damage = None;
        Ok(())
    }

    /// Returns true when two sound copies have different contents.
    pub(crate) fn copies_differ(&self, from: &(impl ReadAt + ?Sized)) -> Result<bool> {
        store::copies_differ(from, &self.stored)
    }

    /// Unlocks the volume key; see [`crate::Header::unlock`].
    pub fn unlock(
        &self,
        from: &(impl ReadAt + ?Sized),
        passphrase: &Key,
        options: &UnlockOptions,
    ) -> Result<Unlocked> {
        keyslot::unlock(&self.stored.metadata, from, passphrase, options)
    }

    /// Accepts a given volume key; see [`crate::Header::volume_key`].
    pub fn volume_key(&self, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
        keyslot::verify(&self.stored.metadata, key, options)
    }

    /// Returns the digest for a later check; see [`crate::Header::key_check`].
    pub fn key_check(&self, key: &VolumeKey) -> Result<KeyCheck> {
        keyslot::key_check(&self.stored.metadata, key)
    }

    /// Builds the volume; see [`crate::Header::activate`].
    pub fn activate(&self, key: &VolumeKey, data_size: u64, options: &ActivateOptions) -> Result<Volume> {
        activate::activate(&self.stored.metadata, key, data_size, options)
    }

    /// Returns the layer below the volume; see [`crate::Header::integrity_layer`].
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        activate::integrity_layer(&self.stored.metadata)
    }

    /// Returns the length of both copies with the room for keyslots.
    pub(crate) fn keyslots_end(&self) -> u64 {
        2 * self.stored.binary.size + self.stored.metadata.config.keyslots_size
    }

    /// Returns the start of the room for keyslots.
    pub(crate) fn keyslots_begin(&self) -> u64 {
        2 * self.stored.binary.size
    }

    pub(crate) fn metadata(&self) -> &metadata::Metadata {
        &self.stored.metadata
    }

    /// Refuses to continue when the header on disk is no longer the one that was read.
    pub(crate) fn is_unchanged(&self, on: &(impl ReadAt + ?Sized)) -> Result<()> {
        store::unchanged(on, &self.stored).map(drop)
    }

    /// Where the key material of each passphrase's keyslot lies.
    fn key_areas(&self) -> impl Iterator<Item = Range<u64>> {
        let slots = self.stored.metadata.keyslots.values().filter(|slot| slot.passphrase.is_ok());
        slots.map(|slot| slot.area.0..slot.area.0 + slot.area.1)
    }

    /// Where each keyslot's area lies.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        let slots = self.stored.metadata.keyslots.iter();
        slots.map(|(number, slot)| (*number, slot.area.0..slot.area.0 + slot.area.1)).collect()
    }

    /// See [`crate::Header::secure`] (the caller has the lock). The key material comes first, as
    /// when it is new.
    pub(crate) fn secure(&mut self, on: &(impl Target + ?Sized)) -> Result<()> {
        let now = store::unchanged(on, &self.stored)?;
        self.key_areas().try_for_each(|area| storage::secure_material(on, area))?;
        store::secure(on, &now)?;
        self.is_secured = true;
        Ok(())
    }

    /// Writes a bad copy again where nobody else's bytes can be: in a backup.
    pub(crate) fn mend(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::mend(to, &self.stored)
    }

    /// Returns the UUID, if the header has one.
    pub fn uuid(&self) -> Option<Uuid> {
        self.stored.binary.uuid()
    }

    /// Returns true when the other header has the same UUID, in whatever form.
    fn is_same_volume(&self, other: &Self) -> bool {
        self.stored.binary.uuid == other.stored.binary.uuid
    }

    /// Returns true when only the second copy is sound.
    fn lacks_first_copy(&self) -> bool {
        self.stored.damage.as_ref().is_some_and(|damage| damage.place == HeaderCopy::First)
    }

    /// Returns the first byte of the data on their device.
    pub fn data_offset(&self) -> u64 {
        self.stored.metadata.data_offset()
    }

    pub(crate) fn digest(&self) -> HeaderDigest {
        self.stored.digest
    }

    /// Returns the size of the data, if all segments have theirs.
    pub fn data_size(&self) -> Option<u64> {
        self.stored.metadata.data_size()
    }

    /// Returns the metadata as they are on disk.
    pub fn json(&self) -> &serde_json::Map<String, serde_json::Value> {
        &self.stored.metadata.document
    }

    /// Returns all facts that need no key.
    pub fn info(&self) -> Info {
        describe::describe(&self.stored)
    }
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("luks2::Header")
            .field("binary", &self.stored.binary)
            .field("damage", &self.stored.damage)
            .finish_non_exhaustive()
    }
}
