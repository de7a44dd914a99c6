//! LUKS1 (LUKS On-Disk Format Specification 1.2.3).
//!
//! ```text
//!   header, 592 bytes --+-- cipher, hash, start of the data, digest of the volume key       phdr
//!                       +-- eight keyslots: salt, iterations, place of the key material     phdr
//!   key material            passphrase -> key of its area -> volume key                    (here)
//!   data
//! ```
//!
//! `update` is the only way to change a header; the changes themselves are in `update/`.

mod describe;
mod format;
pub(crate) mod phdr;
mod repair;
mod update;

use std::ops::Range;

use underseal_cipher::SectorSize;
use uuid::Uuid;

pub(crate) use format::{data_begins, format};
pub(crate) use phdr::LEN;
pub(crate) use repair::{repair, repairs};
pub(crate) use update::write_new;

use crate::area::KeyArea;
use crate::kdf::Budget;
use crate::{
    ActivateOptions, CipherParameters, Error, ErrorKind, HeaderDigest, Info, Kdf, Key, KeyCheck, ReadAt,
    Result, Segment, Target, UnlockOptions, Unlocked, Volume, VolumeKey, af, kdf, storage, unlock, volume,
};
use phdr::Phdr;

/// The first place of key material in every header that cryptsetup makes.
pub(crate) const FIRST_PLACE: u64 = 4096;

/// A LUKS1 header as read from disk.
#[derive(Debug)]
pub struct Header {
    pub(crate) phdr: Phdr,
    /// The header is on stable storage as it was read: this process has secured or written it.
    is_secured: bool,
}

impl Header {
    /// Reads the header from a file, a device or bytes; returns `None` without one.
    ///
    /// # Errors
    /// `BadHeader` when it breaks a rule of its format, `Unsupported` for a cipher or hash that
    /// this build lacks, `TooSmall` when the file ends within it, `Io`.
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        Ok(read(from)?.map(|phdr| Self { phdr, is_secured: false }))
    }

    /// Unlocks the volume key; see [`crate::Header::unlock`].
    pub fn unlock(
        &self,
        from: &(impl ReadAt + ?Sized),
        passphrase: &Key,
        options: &UnlockOptions,
    ) -> Result<Unlocked> {
        let active = |number: &u32| self.phdr.slots.get(*number as usize).is_some_and(Option::is_some);
        let slots: Vec<u32> = match options.slot {
            Some(chosen) if active(&chosen) => vec![chosen],
            Some(chosen) => {
                return Err(Error::new(ErrorKind::NoKeyslot, format!("keyslot {chosen} is not in use")));
            }
            None => (0u32..phdr::SLOT_COUNT)
                .filter(|number| active(number) && options.except != Some(*number))
                .collect(),
        };
        if slots.is_empty() {
            return Err(Error::new(
                ErrorKind::NoKeyslot,
                "no keyslot is in use: the volume cannot be opened",
            ));
        }
        unlock::within_limits(passphrase, options, |passphrase, budget| {
            unlock::first_that_opens(slots.iter().copied(), |number| {
                self.open(number, from, passphrase, options, budget).map(|key| Unlocked { slot: number, key })
            })
        })
    }

    fn open(
        &self,
        number: u32,
        from: &(impl ReadAt + ?Sized),
        passphrase: &Key,
        options: &UnlockOptions,
        budget: &Budget,
    ) -> Result<VolumeKey> {
        let Phdr { hash, cipher, key_bytes, .. } = &self.phdr;
        let Some(slot) = &self.phdr.slots[number as usize] else {
            return Err(Error::new(ErrorKind::NoKeyslot, "is not in use"));
        };
        unlock::allow_null(cipher, options.allow_null)?;
        let kdf = Kdf::Pbkdf2 { hash: *hash, iterations: slot.iterations, salt: slot.salt.to_vec() };
        let wrapping = budget.derive(&kdf, passphrase.as_bytes(), *key_bytes)?;
        let area = KeyArea { spec: cipher, hash: *hash };
        let key = area.read(from, slot.offset, &wrapping, *key_bytes)?;
        if self.confirms(&key, budget)? {
            return Ok(VolumeKey::new(key, 0));
        }
        Err(unlock::wrong_passphrase())
    }

    /// Accepts a given volume key; see [`crate::Header::volume_key`].
    pub fn volume_key(&self, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
        if key.len() == self.phdr.key_bytes && self.confirms(&key, &Budget::new(options.limits))? {
            return Ok(VolumeKey::new(key, 0));
        }
        Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume"))
    }

    fn confirms(&self, key: &Key, budget: &Budget) -> Result<bool> {
        let phdr = &self.phdr;
        let found = budget.derive(&phdr.digest_kdf(), key.as_bytes(), phdr.digest.len())?;
        Ok(kdf::to_key(&phdr.digest)? == found)
    }

    /// Returns the digest for a later check; see [`crate::Header::key_check`].
    pub fn key_check(&self, key: &VolumeKey) -> KeyCheck {
        KeyCheck { kdf: self.phdr.digest_kdf(), digest: self.phdr.digest.to_vec(), len: key.key.len() }
    }

    /// Builds the volume; see [`crate::Header::activate`].
    pub fn activate(&self, key: &VolumeKey, data_size: u64, options: &ActivateOptions) -> Result<Volume> {
        let lower = self.data_offset();
        if lower == 0 && !options.detached {
            let context = "the data begins at byte 0, so this header is detached: name both files";
            return Err(Error::new(ErrorKind::BadLayout, context));
        }
        unlock::allow_null(&self.phdr.cipher, options.allow_null)?;
        let cipher_parameters = CipherParameters::new(&self.phdr.cipher, SectorSize::S512, key.key.len());
        let cipher = cipher_parameters.build(&key.key)?;
        let len = volume::data_length(data_size, lower, None, SectorSize::S512)?;
        let segment = Segment::stored(0, len, lower, 0, cipher).with_recipe(cipher_parameters);
        Ok(Volume::new(vec![segment])?.with_discards(options.allow_discards))
    }

    /// Returns the header's bytes for writing.
    pub fn encode(&self) -> [u8; LEN] {
        self.phdr.encode()
    }

    /// Returns the length of header and keyslots, in whole pages: that of cryptsetup's backups.
    pub(crate) fn keyslots_end(&self) -> u64 {
        let len = af::split_len(self.phdr.key_bytes) as u64;
        let payload = Some(self.phdr.payload_offset).filter(|&offset| offset != 0);
        // Free slots may have arbitrary places: they count where a new header would have them.
        let usual = FIRST_PLACE + len.next_multiple_of(FIRST_PLACE) * phdr::SLOTS as u64;
        let used = |number: usize| self.phdr.slots[number].is_some();
        let fits = |(number, end): &(usize, u64)| match payload {
            Some(payload) => *end <= payload,
            None => used(*number) || *end <= usual,
        };
        let ends = (0..phdr::SLOTS).map(|number| (number, self.phdr.place(number) + len));
        let ends = ends.filter(fits).map(|(_, end)| end);
        let end = ends.max().unwrap_or(0).max(FIRST_PLACE).next_multiple_of(FIRST_PLACE);
        payload.map_or(end, |payload| end.min(payload))
    }

    /// Returns the area of each keyslot in use.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        let len = af::split_len(self.phdr.key_bytes) as u64;
        let slots = (0..).zip(&self.phdr.slots);
        slots
            .filter_map(|(number, slot)| Some((number, slot.as_ref()?.offset)))
            .map(|(n, at)| (n, at..at + len))
            .collect()
    }

    /// Returns the range between the header and the first place of key material.
    pub(crate) fn unused(&self) -> Range<usize> {
        let first = (0..phdr::SLOTS).map(|number| self.phdr.place(number)).min().unwrap_or(0);
        let end = first.min(FIRST_PLACE).min(self.keyslots_end());
        LEN..usize::try_from(end).unwrap_or(LEN).max(LEN)
    }

    /// See [`crate::Header::secure`] (the caller has the lock). The key material comes first, as
    /// when it is new.
    pub(crate) fn secure(&mut self, on: &(impl Target + ?Sized)) -> Result<()> {
        unchanged(on, self)?;
        self.areas().into_iter().try_for_each(|(_, area)| storage::secure_material(on, area))?;
        write_new(on, &self.phdr.bytes)?;
        self.is_secured = true;
        Ok(())
    }

    pub(crate) fn digest(&self) -> HeaderDigest {
        HeaderDigest::of(&[&self.phdr.bytes])
    }

    /// Returns the UUID, if the header has one.
    pub fn uuid(&self) -> Option<Uuid> {
        self.phdr.uuid.as_str().parse().ok()
    }

    /// Returns the first byte of the data on their device.
    pub fn data_offset(&self) -> u64 {
        self.phdr.payload_offset
    }

    /// Returns all facts that need no key.
    pub fn info(&self) -> Info {
        describe::describe(&self.phdr)
    }
}

fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<Phdr>> {
    let mut magic = [0; 8];
    match storage::read_into(from, 0, &mut magic) {
        // LUKS2's second copy may be readable; if not, its reader reports the error.
        Err(e) if matches!(e.kind(), ErrorKind::TooSmall | ErrorKind::Io) => return Ok(None),
        Err(e) => return Err(e),
        Ok(()) if magic != phdr::MAGIC => return Ok(None),
        Ok(()) => {}
    }
    let mut bytes = [0; phdr::LEN];
    storage::read_into(from, 0, &mut bytes)?;
    Phdr::parse(&bytes).map(Some).map_err(|e| e.within("LUKS1 header"))
}

/// Refuses to continue when the header on disk is no longer the one that was read.
pub(crate) fn unchanged(on: &(impl ReadAt + ?Sized), before: &Header) -> Result<()> {
    let changed = || Error::new(ErrorKind::Busy, "the header was changed meanwhile; try again");
    read(on)?.filter(|now| now.bytes == before.phdr.bytes).map(drop).ok_or_else(changed)
}
