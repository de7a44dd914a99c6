//! LUKS2 (LUKS2 On-Disk Format Specification 1.1).
//!
//! ```text
//!   binary header --+-- JSON area      twice: the second copy right behind the first      binary, json, store
//!                   |     keyslots     passphrase -> key of its area -> volume key         keyslot
//!                   |     digests      is this the volume key?                            keyslot
//!                   |     segments     where the data lies and under which cipher         activate
//!                   |     tokens       where a passphrase may be had elsewhere
//!   keyslot areas --+
//!   data
//! ```
//!
//! `update` is the one way by which a header changes; what it changes it to is in `update/`.

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
pub use reencrypt::{
    BeginOptions, DecryptOptions, EncryptOptions, Ledger, NewKey, NewVolume, Passphrase, ResumeOptions,
    Stage, Status, UnfinishedStart,
};
pub(crate) use store::Copies;
pub use tokens::{TokenChoice, TokenToTry};
pub use update::tokens::{NewToken, token_from_json};

use crate::{
    ActivateOptions, HeaderDigest, Info, IntegrityLayer, Key, KeyCheck, ReadAt, Result, Target,
    UnlockOptions, Unlocked, Volume, VolumeKey,
};

/// A LUKS2 header as read from disk.
pub struct Header {
    stored: store::Stored,
}

impl Header {
    /// Reads the header from a file, a device or bytes; none when there is no trace of one.
    ///
    /// Both copies are checked, and the newer sound one wins; where the first is bad, the second is
    /// looked for in all of its nine places. A bad or stale copy next to a good one is reported by
    /// [`Header::damage`].
    ///
    /// # Errors
    /// `Ambiguous` when a second copy is there, and the device begins with another format's
    /// signature; `BadHeader` when there are copies but none is sound, `TooSmall` when the file
    /// ends within them, `Io`.
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        Ok(store::read(from)?.map(|stored| Self { stored }))
    }

    /// Where the two copies are, and how each begins.
    pub fn copies(&self) -> [(u64, [u8; 6]); 2] {
        let size = self.stored.binary.size;
        [HeaderCopy::First, HeaderCopy::Second].map(|copy| (copy.offset(size), copy.magic()))
    }

    /// What is wrong with one of the two copies, if anything is.
    pub fn damage(&self) -> Option<&str> {
        self.stored.damage.as_ref().map(|damage| damage.why.as_str())
    }

    /// Where the bad copy is, if one is bad.
    pub(crate) fn bad_copy(&self) -> Option<Range<u64>> {
        let store::Stored { binary, damage, .. } = &self.stored;
        let at = damage.as_ref()?.place.offset(binary.size);
        Some(at..at + binary.size)
    }

    /// Writes a bad or stale copy again from the good one, with a fresh salt, under the header's
    /// lock.
    ///
    /// # Errors
    /// `Ambiguous` when what stands in the bad one's place may be something else than a header;
    /// `Busy` when somebody changed the header since it was read; `Io`.
    pub fn repair(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::repair(to, &self.stored)?;
        self.stored.damage = None;
        Ok(())
    }

    /// Reads a header of which only the second copy is left, whatever stands in place of the first.
    pub(crate) fn read_over(from: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        Ok(store::read_over(from)?.map(|stored| Self { stored }))
    }

    /// As [`Header::repair`], whatever stands in the bad copy's place.
    pub(crate) fn repair_over(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::repair_over(to, &self.stored)?;
        self.stored.damage = None;
        Ok(())
    }

    /// Whether two copies that are both sound say different things.
    pub(crate) fn copies_differ(&self, from: &(impl ReadAt + ?Sized)) -> Result<bool> {
        store::copies_differ(from, &self.stored)
    }

    /// The volume key that a passphrase opens; see [`crate::Header::unlock`].
    pub fn unlock(
        &self,
        from: &(impl ReadAt + ?Sized),
        passphrase: &Key,
        options: &UnlockOptions,
    ) -> Result<Unlocked> {
        keyslot::unlock(&self.stored.metadata, from, passphrase, options)
    }

    /// Takes a volume key from elsewhere; see [`crate::Header::volume_key`].
    pub fn volume_key(&self, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
        keyslot::verify(&self.stored.metadata, key, options)
    }

    /// What confirms the same key later; see [`crate::Header::key_check`].
    pub fn key_check(&self, key: &VolumeKey) -> Result<KeyCheck> {
        keyslot::key_check(&self.stored.metadata, key)
    }

    /// What tells the key that all of the data has from others; see
    /// [`crate::Header::data_key_check`].
    pub fn data_key_check(&self) -> Option<KeyCheck> {
        keyslot::data_key_check(&self.stored.metadata)
    }

    /// The volume; see [`crate::Header::activate`].
    pub fn activate(&self, key: &VolumeKey, data_size: u64, options: &ActivateOptions) -> Result<Volume> {
        activate::activate(&self.stored.metadata, key, data_size, options)
    }

    /// What has to lie below the volume; see [`crate::Header::integrity_layer`].
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        activate::integrity_layer(&self.stored.metadata)
    }

    /// The bytes that both copies take with the room for keyslots.
    pub(crate) fn keyslots_end(&self) -> u64 {
        2 * self.stored.binary.size + self.stored.metadata.config.keyslots_size
    }

    /// Where the room for keyslots begins.
    pub(crate) fn keyslots_begin(&self) -> u64 {
        2 * self.stored.binary.size
    }

    pub(crate) fn metadata(&self) -> &metadata::Metadata {
        &self.stored.metadata
    }

    /// Refuses to go on when the header on disk is no longer the one that was read.
    pub(crate) fn is_unchanged(&self, on: &(impl ReadAt + ?Sized)) -> Result<()> {
        store::unchanged(on, &self.stored).map(drop)
    }

    /// Where each keyslot's area lies.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        let slots = self.stored.metadata.keyslots.iter();
        slots.map(|(number, slot)| (*number, slot.area.0..slot.area.0 + slot.area.1)).collect()
    }

    /// Writes a bad copy again where nobody else's bytes can be: in a backup.
    pub(crate) fn mend(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        store::mend(to, &self.stored)
    }

    /// The UUID, if the header holds one.
    pub fn uuid(&self) -> Option<Uuid> {
        self.stored.binary.uuid()
    }

    /// Whether the other header has the same UUID, in whatever form.
    fn is_same_volume(&self, other: &Self) -> bool {
        self.stored.binary.uuid == other.stored.binary.uuid
    }

    /// Whether only the second copy is sound.
    fn lacks_first_copy(&self) -> bool {
        self.stored.damage.as_ref().is_some_and(|damage| damage.place == HeaderCopy::First)
    }

    /// The first byte of data on its device.
    pub fn data_offset(&self) -> u64 {
        self.stored.metadata.data_offset()
    }

    pub(crate) fn digest(&self) -> HeaderDigest {
        self.stored.digest
    }

    /// The size of the data, where all segments say theirs.
    pub fn data_size(&self) -> Option<u64> {
        self.stored.metadata.data_size()
    }

    /// The metadata as it stands on disk.
    pub fn json(&self) -> &serde_json::Map<String, serde_json::Value> {
        &self.stored.metadata.document
    }

    /// Everything there is to tell, without any key.
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
