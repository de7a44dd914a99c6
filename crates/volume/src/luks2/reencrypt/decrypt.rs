//! The start of a decryption. In the end the data begins at byte 0 of its device, without a header,
//! so the header must be detached, or is exported first.
//!
//! ```text
//!   header copied to a file, synced -> wiped on the device
//!     -> first data copied over it, synced -> file: in progress, one update
//! ```
//! Until the file names the decryption, it is a plain detached header. An interrupted start is
//! repeated with this file.

use std::path::Path;

use serde_json::json;

use super::arrange::{Arrangement, Document};
use super::begin::{eligible, iterations};
use super::encrypt::{copy, linear};
use super::shape::ShapeInput;
use crate::format::{bad, forget_old_headers};
use crate::lock::{LockTo, ReencryptionLock};
use crate::luks2::metadata::Metadata;
use crate::luks2::update::room::Room;
use crate::luks2::{Header, keyslot, store};
use crate::reencrypt::{Direction, Mode, Protection};
use crate::signature::{LOOKED_AT, signature};
use crate::storage::new_file::{new_file, remove_new_file};
use crate::{Error, ErrorKind, NamedFile, ReadAt, Result, Target, VolumeKey, storage, volume};

/// How a volume is decrypted in place.
#[derive(Debug, Clone)]
pub struct DecryptOptions {
    /// The order of the steps. Data that moves does so forward.
    pub direction: Direction,
    /// The protection of a step that is written over its own source; never [`Protection::Source`].
    /// Data that moves needs a protection.
    pub protection: Protection,
    /// The largest number of bytes that are moved away at the start, and decrypted in one step at
    /// the end. `None` takes as many as possible.
    pub first: Option<u64>,
    /// The size of the part to decrypt, if the data does not move. The rest of the device stays as
    /// it is.
    pub size: Option<u64>,
    /// Data that moves does so to byte 0, over the bytes in front of it: the place of the exported
    /// header.
    pub over_header: bool,
    /// Accepts data that is not encrypted under the name of a cipher (`cipher_null`).
    pub allow_null: bool,
    /// The volume is open. Its server has the lock of reencryptions, shared, and carries out the
    /// decryption.
    pub is_open: bool,
}

/// The start of a device over which data will move that are decrypted: their header was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverwrittenStart {
    /// In bytes.
    pub len: u64,
    /// The format that begins there, if it is known.
    pub signature: Option<&'static str>,
}

/// A start that is decided.
struct Start {
    arrangement: Arrangement,
    /// The bytes that are copied to the start of the device: offset and length.
    moved: Option<(u64, u64)>,
}

impl Header {
    /// Moves the header from the device to a new file, so that the data can be decrypted. The
    /// caller makes sure that the file's name is on stable storage before. All checks of the
    /// decryption come first; see [`Header::begin_decryption`].
    ///
    /// # Errors
    /// The kinds of [`Header::begin_decryption`]. Until the file is written and synced, the device
    /// is unchanged.
    pub fn export(
        &self,
        device: &(impl Target + ?Sized),
        to: &(impl Target + ?Sized),
        key: &VolumeKey,
        options: &DecryptOptions,
    ) -> Result<Self> {
        let _reencryption = ReencryptionLock::take(self.uuid(), LockTo::Change)?;
        let _lock = device.lock(LockTo::Change)?;
        store::unchanged(device, &self.stored)?;
        if self.damage().is_some() {
            return Err(bad("one copy of the header is damaged: repair it first"));
        }
        self.try_decryption(key, storage::size(device)?, options)?;
        let end = self.keyslots_end();
        if storage::size(to)? < end {
            let short = |e| {
                Error::new(ErrorKind::TooSmall, format!("the file cannot be made {end} bytes long"))
                    .with_source(e)
            };
            to.set_len(end).map_err(short)?;
        }
        copy((device, 0), (to, 0), end)?;
        storage::sync(to)?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        let exported = Self::read(to)?.ok_or_else(gone)?;
        store::unchanged(to, &self.stored)?;
        forget_old_headers(device, end)?;
        Ok(exported)
    }

    /// Moves the header from in front of the data to a new file, and begins to decrypt them. The
    /// file, which is durable under its name before the header leaves the device, is returned. The
    /// header comes back to the device if the file is removed or replaced before the decryption has
    /// begun.
    ///
    /// # Errors
    /// `BadOption` when the file is there already; those of [`Header::export`] and
    /// [`Header::begin_decryption`].
    pub fn begin_decryption_into(
        &self,
        path: &Path,
        device: &(impl Target + ?Sized),
        key: &VolumeKey,
        options: &DecryptOptions,
    ) -> Result<NamedFile> {
        let file = new_file(path)?;
        let copies = storage::read(device, 0, usize::try_from(2 * self.stored.binary.size).unwrap_or(0))?;
        let exported = self.export(device, &file, key, options);
        if exported.is_err() && self.is_whole_on(device) {
            remove_new_file(path, file.file());
        }
        let within = |e: Error| e.within(format_args!("the header's copy {}", path.display()));
        let begun = exported.map_err(within).and_then(|mut exported| {
            exported.begin_decryption(&file, device, key, options).map_err(|e| e.in_file(path))
        });
        match begun {
            Err(e) if file.keeps_name().is_err() => Err(match self.put_back(device, &file, &copies) {
                Ok(()) => e,
                Err(lost) => lost.within(format_args!("{e}, and the device cannot get its header back")),
            }),
            begun => begun.map(|()| file),
        }
    }

    /// Moves the header from a file without a name back to the device, with these copies.
    fn put_back(&self, device: &(impl Target + ?Sized), file: &NamedFile, copies: &[u8]) -> Result<()> {
        if self.is_whole_on(device) {
            return Ok(());
        }
        let _reencryption = ReencryptionLock::take(self.uuid(), LockTo::Change)?;
        let _lock = device.lock(LockTo::Change)?;
        let keyslots = copies.len() as u64;
        copy((file, keyslots), (device, keyslots), self.keyslots_end().saturating_sub(keyslots))?;
        storage::sync(device)?;
        storage::write(device, 0, copies)?;
        storage::sync(device)
    }

    /// True when the device has this header still, in both copies.
    fn is_whole_on(&self, device: &(impl ReadAt + ?Sized)) -> bool {
        let there = Self::read(device).ok().flatten();
        there.is_some_and(|there| there.damage().is_none() && there.is_same_volume(self))
    }

    /// Returns true when a decryption whose start was cut off has moved this header to `file`
    /// already: the device has the second copy alone. [`Header::begin_decryption`] takes it from
    /// there, with the header of the file.
    pub(crate) fn was_moved_to(&self, file: &(impl ReadAt + ?Sized)) -> bool {
        let is_this = |there: Self| {
            there.damage().is_none()
                && there.is_same_volume(self)
                && there.stored.metadata.document == self.stored.metadata.document
        };
        self.lacks_first_copy() && Self::read(file).ok().flatten().is_some_and(is_this)
    }

    /// The start of the device that decrypted data will move over; none where they do not move.
    ///
    /// # Errors
    /// `Io`.
    pub fn overwritten_start(&self, data: &(impl ReadAt + ?Sized)) -> Result<Option<OverwrittenStart>> {
        let len = self.info().segments.iter().map(|segment| segment.offset).min().unwrap_or(0);
        if len == 0 {
            return Ok(None);
        }
        let start = storage::read(data, 0, usize::try_from(len.min(LOOKED_AT)).unwrap_or(0))?;
        Ok(Some(OverwrittenStart { len, signature: signature(&start) }))
    }

    /// Begins to decrypt data whose header stands apart, on `on`. Data that begin at another byte
    /// than 0 of `data` are moved there.
    ///
    /// # Errors
    /// `BadOption` for options that do not fit the volume, and when other bytes may be in the way
    /// of data that moves; `Unsupported` for volumes that cannot be decrypted, and during a
    /// reencryption; `Busy` when another process starts a reencryption at the same time; `NoRoom`,
    /// `WrongKey`, `BadLayout`, `TooSmall`, `NullCipher`, `Io`, `Memory`.
    pub fn begin_decryption(
        &mut self,
        on: &(impl Target + ?Sized),
        data: &(impl Target + ?Sized),
        key: &VolumeKey,
        options: &DecryptOptions,
    ) -> Result<()> {
        let _lock = ReencryptionLock::of_start(self.uuid(), options.is_open)?;
        let data_size = storage::size(data)?;
        self.try_decryption(key, data_size, options)?;
        if let Some((from, len)) =
            Start::new(self.metadata(), self.stored.binary.size, data_size, options)?.moved
        {
            store::unchanged(on, &self.stored)?;
            self.is_exported_from(data)?;
            // After an interrupted export, the rest of the old header would be taken for a header,
            // and the data for damage.
            forget_old_headers(data, from)?;
            copy((data, from), (data, 0), len)?;
            storage::sync(data)?;
        }
        let header_size = self.stored.binary.size;
        let given = ShapeInput { data_size, hot_zone: None, allow_null: options.allow_null, detached: true };
        let edit = |document: &mut Document, metadata: &Metadata| {
            let start = Start::new(metadata, header_size, data_size, options)?;
            start.arrangement.write(document, header_size, &mut Room::of(metadata, header_size), key, given)
        };
        self.update(on, edit, |()| Ok(()))
    }

    /// Refuses to write to the start of a device that still has a header. The rest of this header
    /// after an interrupted export is accepted.
    fn is_exported_from(&self, data: &(impl Target + ?Sized)) -> Result<()> {
        match crate::Header::read(data) {
            Err(e) if e.kind() == ErrorKind::NoHeader => Ok(()),
            Ok(crate::Header::Luks2(there)) if there.is_same_volume(self) && there.lacks_first_copy() => {
                Ok(())
            }
            Ok(_) => Err(bad("the device of the data has a header: that is to be exported first")),
            Err(e) => Err(e.within("the bytes at the start of the data's device")),
        }
    }

    /// Refuses a decryption that could not begin, before anything is written.
    fn try_decryption(&self, key: &VolumeKey, data_size: u64, options: &DecryptOptions) -> Result<()> {
        let metadata = self.metadata();
        keyslot::confirm(metadata, key)?;
        let header_size = self.stored.binary.size;
        let start = Start::new(metadata, header_size, data_size, options)?;
        let given = ShapeInput { data_size, hot_zone: None, allow_null: options.allow_null, detached: true };
        let mut document = metadata.document.clone();
        start.arrangement.write(&mut document, header_size, &mut Room::of(metadata, header_size), key, given)
    }
}

impl Start {
    fn new(metadata: &Metadata, header_size: u64, data_size: u64, options: &DecryptOptions) -> Result<Self> {
        let (digest, segment, crypt) = eligible(metadata)?;
        let DecryptOptions { direction, protection, first, size, .. } = *options;
        let shift = segment.offset;
        let whole = volume::data_length(data_size, shift, segment.size, crypt.sector_size)?;
        let unit = crypt.sector_size.bytes() as u64;
        let size = match size {
            Some(_) if shift > 0 => return Err(bad("data that move are decrypted as a whole")),
            Some(size) if size == 0 || size > whole || !size.is_multiple_of(unit) => {
                return Err(bad(format!("{size} bytes: up to {whole} in sectors of {unit}")));
            }
            size => size.unwrap_or(whole),
        };
        if shift > 0 && !options.over_header {
            return Err(bad(format!(
                "data at byte {shift} of their device would be moved over the bytes before them: allowed over their own header only"
            )));
        }
        let mut previous = metadata.document["segments"]["0"].clone();
        let moved = if shift == 0 {
            None
        } else {
            let area = Room::of(metadata, header_size).take_largest()?;
            let len = first_len(protection, area.end - area.start)?;
            let len = len.min(shift).min(first.unwrap_or(u64::MAX));
            let len = if len >= size { size } else { len & !(unit.max(4096) - 1) };
            if len == 0 {
                return Err(bad("nothing is left to be moved out of the way at first"));
            }
            Some((shift, len))
        };
        let arrangement = Arrangement {
            mode: Mode::Decrypt,
            direction: if shift == 0 { direction } else { Direction::Forward },
            protection,
            shift: Some(shift).filter(|&shift| shift > 0),
            moved: moved.map(|(_, len)| {
                let mut moved = previous.clone();
                moved["offset"] = json!("0");
                moved["size"] = len.to_string().into();
                moved
            }),
            last: (linear(0, segment.size), None),
            size,
            open: segment.size.is_none() && options.size.is_none(),
            iterations: iterations(metadata, digest),
            previous: (previous.take(), Some(digest)),
        };
        Ok(Self { arrangement, moved })
    }
}

/// Returns the length of the longest step in place that an area of `area` bytes protects.
fn first_len(protection: Protection, area: u64) -> Result<u64> {
    match protection {
        Protection::Checksum { hash, block } => Ok((area / hash.output_len() as u64).saturating_mul(block)),
        Protection::Journal => Ok(area),
        Protection::None | Protection::Source => Err(bad(
            "the last step of data that move is written over its source: it wants checksums or a journal",
        )),
    }
}
