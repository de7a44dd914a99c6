//! Writing a new header.

use std::fmt;
use std::ops::Range;

use underseal_cipher::Key;

use super::{FormatOptions, Version};
use crate::lock::LockTo;
use crate::storage::{self, Target};
use crate::{Error, ErrorKind, Header, IntegrityLayer, Result, VolumeKey, luks1, luks2};

/// The unit that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// A new header that is ready to be written. All decisions, derivations and encryptions are done;
/// from here on only reading and writing can fail, so an option that does not fit never destroys
/// old contents.
pub struct NewHeader {
    detached: bool,
    key: VolumeKey,
    pub(super) parts: Parts,
}

/// The parts of a new header.
pub(crate) struct Parts {
    /// The room for keyslots: filled with noise, so that earlier keyslots are gone.
    pub(crate) keyslots: Range<u64>,
    /// The start of the data on their device.
    pub(crate) data_offset: u64,
    /// The keyslot's place, and its encrypted area.
    pub(crate) area: (u64, Key),
    pub(crate) copies: Copies,
}

/// The copies of the header.
pub(crate) enum Copies {
    /// LUKS1's single copy.
    Luks1(Box<[u8; luks1::LEN]>),
    /// LUKS2's two copies.
    Luks2(luks2::Copies),
}

impl NewHeader {
    /// Decides all of the header for data on `data_size` bytes, and derives its keys, without
    /// writing.
    ///
    /// # Errors
    /// `BadOption` when the options contradict each other, `TooSmall` when the header does not fit
    /// before the data's end, `NullCipher`, `Memory`.
    pub fn prepare(data_size: u64, passphrase: &Key, options: FormatOptions) -> Result<Self> {
        let detached = options.detached;
        let (parts, key) = match options.version {
            Version::Luks1 => luks1::format(data_size, passphrase, options)?,
            Version::Luks2 => luks2::format(data_size, passphrase, options)?,
        };
        Ok(Self { detached, key: VolumeKey::new(key, 0), parts })
    }

    /// Writes the header, and reads it back.
    ///
    /// Any earlier header is gone afterwards; the data are left alone. A detached header's file is
    /// extended as needed. A crash leaves no header or a whole one: keyslots are on disk before the
    /// header is.
    ///
    /// # Errors
    /// `TooSmall` when it does not fit, before the first write; `Busy`, `Io`.
    pub fn write(&self, to: &(impl Target + ?Sized)) -> Result<Header> {
        let _lock = to.lock(LockTo::Change)?;
        let Parts { keyslots, data_offset, area: (place, area), copies } = &self.parts;
        // The bytes that extend a file held no keyslot: they stay a hole.
        let old_end = storage::size(to)?.clamp(keyslots.start, keyslots.end);
        self.make_room(to, self.detached)?;
        forget_old_headers(to, keyslots.end.max(*data_offset))?;
        storage::scrub(to, keyslots.start..old_end)?;
        storage::write(to, *place, area.as_bytes())?;
        storage::sync(to)?;
        match copies {
            Copies::Luks1(bytes) => luks1::write_new(to, bytes)?,
            Copies::Luks2(copies) => copies.write(to, luks2::HeaderCopy::First)?,
        }
        Header::parse(to)
    }

    /// Writes everything except the first sector, whose contents stay valid until the header
    /// replaces them with one last write. Fails with `BadOption` for LUKS1; else as
    /// [`NewHeader::write`].
    pub(crate) fn write_from_the_end(&self, to: &(impl Target + ?Sized)) -> Result<()> {
        let _lock = to.lock(LockTo::Change)?;
        let Parts { keyslots, data_offset, area: (place, area), copies } = &self.parts;
        let Copies::Luks2(copies) = copies else {
            return Err(super::bad("LUKS1 cannot be encrypted to where data is"));
        };
        self.make_room(to, false)?;
        forget_second_copies(to, keyslots.end.max(*data_offset))?;
        storage::scrub(to, keyslots.clone())?;
        storage::write(to, *place, area.as_bytes())?;
        storage::sync(to)?;
        copies.write_from_the_end(to)
    }

    pub(crate) fn of_parts(parts: Parts, key: VolumeKey, detached: bool) -> Self {
        Self { detached, key, parts }
    }

    /// Returns the layer below the volume, which writing the header does not make: see
    /// [`Header::integrity_layer`].
    ///
    /// # Errors
    /// `BadHeader`, which a prepared header never causes.
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        match &self.parts.copies {
            Copies::Luks1(_) => Ok(None),
            Copies::Luks2(copies) => luks2::activate::integrity_layer(&copies.metadata()?),
        }
    }

    /// Returns the volume key.
    pub fn into_key(self) -> VolumeKey {
        self.key
    }

    fn make_room(&self, to: &(impl Target + ?Sized), detached: bool) -> Result<()> {
        let (size, end) = (storage::size(to)?, self.parts.keyslots.end);
        if size < end && detached {
            to.set_len(end).map_err(|e| {
                let context = format!("{size} bytes cannot be made {end}, which the header needs");
                Error::new(ErrorKind::TooSmall, context).with_source(e)
            })
        } else if size < end {
            let context = format!("a header of {end} bytes does not fit {size}");
            Err(Error::new(ErrorKind::TooSmall, context))
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for NewHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { keyslots, data_offset, .. } = &self.parts;
        f.debug_struct("NewHeader")
            .field("keyslots", keyslots)
            .field("data_offset", data_offset)
            .field("detached", &self.detached)
            .finish_non_exhaustive()
    }
}

/// Wipes the headers before `end`, one after the other, before any bytes that they need are
/// changed.
pub(crate) fn forget_old_headers(target: &(impl Target + ?Sized), end: u64) -> Result<()> {
    forget(target, 0)?;
    forget_second_copies(target, end)
}

fn forget(target: &(impl Target + ?Sized), place: u64) -> Result<()> {
    // The sector with the magic is wiped first: the rest is then no damaged header.
    for range in [0..SECTOR, SECTOR..luks2::BINARY_LEN] {
        storage::write(target, place + range.start as u64, &[0; luks2::BINARY_LEN][range])?;
        storage::sync(target)?;
    }
    Ok(())
}

/// Wipes the second copies of LUKS2 headers before `end`. Sectors without a copy are written again
/// as they are read: an earlier wipe may be in memory only (see [`storage::secure`]).
pub(crate) fn forget_second_copies(target: &(impl Target + ?Sized), end: u64) -> Result<()> {
    let end = end.min(storage::size(target)?);
    for place in luks2::SECOND_PLACES.into_iter().filter(|place| place + luks2::BINARY_LEN as u64 <= end) {
        let sector = storage::read(target, place, SECTOR)?;
        if sector.starts_with(&luks2::SECOND_MAGIC) {
            forget(target, place)?;
        } else {
            storage::write(target, place, &sector)?;
        }
    }
    storage::sync(target)
}
