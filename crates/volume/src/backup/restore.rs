//! The restore of a backup.
//!
//! If the device has the same layout, after a crash either its old passphrases open it or the
//! backup's, never none: the backup's key material goes to unused places; key material without an
//! unused place is kept elsewhere until the old header is gone.

use std::ops::Range;

use uuid::Uuid;

use super::Backup;
use crate::lock::{LockTo, ReencryptionLock};
use crate::signature::{LOOKED_AT, signature};
use crate::{Error, ErrorKind, Header, ReadAt, Result, Target, format, storage};
use underseal_error::with_causes;

/// The contents that a restore would overwrite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The header of the same volume.
    Same,
    /// The header of the same volume, whose data are encrypted in another way than the backup says:
    /// with another key, cipher or sector size, or in the middle of a reencryption.
    OtherData,
    /// A sound header of another volume, with its UUID if it has one, or of the other LUKS version.
    Another(Option<Uuid>),
    /// A damaged header, and its fault.
    Damaged(String),
    /// Another format: its name.
    Foreign(&'static str),
    /// Neither a header nor zeros.
    Unknown,
    /// Only zeros.
    Nothing,
}

impl Found {
    /// True where a program may have the image open during the restore: for a header of the
    /// backup's volume, or one that may be, since users of that volume expect changes of its
    /// header. With `force` also where no header says whose volume it is; never for the header of
    /// another volume, whose users would lose their key. Any image that is open is locked by its
    /// users, and so is a detached header.
    pub fn may_be_in_use(&self, force: bool) -> bool {
        match self {
            Self::Same | Self::OtherData | Self::Damaged(_) => true,
            Self::Another(_) => false,
            _ => force,
        }
    }
}

/// Options of a restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// True for a detached header, whose file may grow.
    pub detached: bool,
    /// Permits a restore where no room is left to keep the old contents until the backup is on
    /// disk: a crash may then lose both.
    pub in_place: bool,
}

impl Backup {
    /// Returns the contents that a restore would overwrite.
    ///
    /// # Errors
    /// `Busy`, `Io`.
    pub fn found_on(&self, device: &(impl ReadAt + ?Sized)) -> Result<Found> {
        let _lock = device.lock(LockTo::Read)?;
        Ok(self.look(device)?.0)
    }

    /// Restores the header and its keyslots, over the contents that [`Backup::found_on`] reported.
    ///
    /// # Errors
    /// `BadOption` when the existing header has its data or its keyslots in other places;
    /// `Unsupported` when the backup has a requirement that cannot be restored; `TooSmall` when it
    /// does not fit; `NoRoom` when a crash could lose both, unless that is permitted; `Busy` when
    /// the contents have changed meanwhile, and while the existing volume is being reencrypted;
    /// `Io`. The caller locks the image, unless [`Found::may_be_in_use`].
    pub fn restore(
        &self,
        on: &(impl Target + ?Sized),
        found: &Found,
        options: &RestoreOptions,
    ) -> Result<Header> {
        self.may_come_back()?;
        let (now, old) = self.look(on)?;
        if now != *found {
            return Err(changed());
        }
        // A running reencryption would lose its key and its progress.
        let _no_reencryption = match &old {
            Some(old) if is_reencrypted(old) => ReencryptionLock::take_turn(old.uuid(), LockTo::Change)?,
            _ => None,
        };
        self.fits(on, options)?;
        match (old, &self.header) {
            (Some(Header::Luks1(old)), Header::Luks1(new)) => {
                new.fits_over(&old)?;
                (*old).restore(on, new, &self.bytes, options.in_place)?;
            }
            (Some(Header::Luks2(old)), Header::Luks2(new)) => {
                new.fits_over(&old)?;
                (*old).restore(on, new, &self.bytes, options.in_place)?;
            }
            (Some(old), new) if old.data_offset() != new.data_offset() => return Err(elsewhere("data")),
            _ => self.write_anew(on, found)?,
        }
        Header::read(on)
    }

    /// Returns the device's contents, and the header if it is sound.
    fn look(&self, device: &(impl ReadAt + ?Sized)) -> Result<(Found, Option<Header>)> {
        let header = match Header::parse(device) {
            Ok(header) => header,
            Err(e) if e.kind() == ErrorKind::Io => return Err(e),
            Err(e) if matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::Ambiguous) => {
                let len = storage::size(device)?.min(LOOKED_AT);
                let start = storage::read(device, 0, usize::try_from(len).unwrap_or(0))?;
                let found = match signature(&start) {
                    Some(name) => Found::Foreign(name),
                    None if start.iter().all(|&byte| byte == 0) => Found::Nothing,
                    None => Found::Unknown,
                };
                return Ok((found, None));
            }
            Err(e) => return Ok((Found::Damaged(with_causes(&e).to_string()), None)),
        };
        let same_version = std::mem::discriminant(&header) == std::mem::discriminant(&self.header);
        let same = same_version && header.uuid() == self.header.uuid();
        let reencrypting = is_reencrypted(&header) || is_reencrypted(&self.header);
        let differs = || {
            let [old, new] = [&header, &self.header].map(|header| header.info().segments);
            let is_same =
                old.len() == new.len() && old.iter().zip(&new).all(|(old, new)| old.holds_data_as(new));
            header.data_digests() != self.header.data_digests() || !is_same
        };
        let found = match same {
            false => Found::Another(header.uuid()),
            true if reencrypting || differs() => Found::OtherData,
            true => Found::Same,
        };
        Ok((found, Some(header)))
    }

    /// Refuses headers that cannot be restored. The data of a reencryption may have changed since
    /// the backup; the needs of unknown requirements are unknown.
    fn may_come_back(&self) -> Result<()> {
        let requirements = self.header.info().requirements;
        let known = |name: &str| name.starts_with("online-reencrypt") || name == "inline-hw-tags";
        match requirements.iter().find(|name| !known(name)) {
            Some(name) => {
                let name = crate::printable(name);
                let context =
                    format!("config.requirements: the backup requires {name}, which cannot be put back");
                Err(Error::new(ErrorKind::Unsupported, context))
            }
            None => Ok(()),
        }
    }

    fn fits(&self, on: &(impl Target + ?Sized), options: &RestoreOptions) -> Result<()> {
        let (size, len) = (storage::size(on)?, self.bytes.len() as u64);
        let small = |why: String| Err(Error::new(ErrorKind::TooSmall, why));
        if options.detached && size < len {
            return on.set_len(len).map_err(|e| {
                let context = format!("{size} bytes cannot be made {len}, which the header needs");
                Error::new(ErrorKind::TooSmall, context).with_source(e)
            });
        }
        if size < len {
            return small(format!("a header of {len} bytes does not fit {size}"));
        }
        let data = self.header.data_offset();
        if !options.detached && size <= data {
            return small(format!("the data begins at byte {data}, but the device ends at byte {size}"));
        }
        Ok(())
    }

    /// Writes over contents without a sound header of this layout: the new header becomes valid
    /// last.
    fn write_anew(&self, on: &(impl Target + ?Sized), found: &Found) -> Result<()> {
        let _lock = on.lock(LockTo::Change)?;
        if self.look(on)?.0 != *found {
            return Err(changed());
        }
        let len = self.bytes.len() as u64;
        format::forget_old_headers(on, len.max(self.header.data_offset()))?;
        // The first sector identifies a header, and so does the second copy.
        let first_area = self.header.areas().into_iter().map(|(_, area)| area.start).min().unwrap_or(len);
        for range in [first_area..len, 512..first_area, 0..512] {
            storage::write(on, range.start, part(&self.bytes, &range))?;
            storage::sync(on)?;
        }
        Ok(())
    }
}

/// Returns true when the volume has a reencryption, running or not.
fn is_reencrypted(header: &Header) -> bool {
    header.info().requirements.iter().any(|name| name.contains("reencrypt"))
}

fn changed() -> Error {
    Error::new(ErrorKind::Busy, "the header was changed meanwhile; try again")
}

/// Makes the error for a backup with another layout: restoring it would tear the volume apart.
pub(crate) fn elsewhere(what: &str) -> Error {
    let context = format!("the {what} lie elsewhere in the backup than on the device: is it this volume's?");
    Error::new(ErrorKind::BadOption, context)
}

/// The places that key material is written to first.
pub(crate) struct Plan {
    /// Areas that may be written at once.
    pub(crate) direct: Vec<Range<u64>>,
    /// Areas whose place is needed until the old header is gone: their keyslots, and their
    /// temporary places.
    pub(crate) moved: Vec<(u32, Range<u64>, u64)>,
}

impl Plan {
    /// Plans the `new` areas from the backup's `bytes`, beside the `old` ones in use; all of them
    /// are `within` a range. Fails with `NoRoom` when an area finds no temporary place; with `Io`.
    pub(crate) fn new(
        on: &(impl ReadAt + ?Sized),
        bytes: &[u8],
        new: &[(u32, Range<u64>)],
        old: &[Range<u64>],
        within: Range<u64>,
    ) -> Result<Self> {
        let mut plan = Self { direct: Vec::new(), moved: Vec::new() };
        let mut taken: Vec<Range<u64>> =
            old.iter().chain(new.iter().map(|(_, area)| area)).cloned().collect();
        for (number, area) in new {
            let there = storage::read(on, area.start, part(bytes, area).len())?;
            // Bytes that are there already may be in memory only.
            if there == part(bytes, area) || old.iter().all(|other| apart(area, other)) {
                plan.direct.push(area.clone());
                continue;
            }
            let place = free_place(&taken, area.end - area.start, within.clone());
            let place = place.ok_or_else(|| {
                let context = format!("no room to keep keyslot {number} until the old header is gone");
                Error::new(ErrorKind::NoRoom, context)
            })?;
            taken.push(place..place + (area.end - area.start));
            plan.moved.push((*number, area.clone(), place));
        }
        Ok(plan)
    }

    /// Writes the areas that may be written now, and syncs.
    pub(crate) fn write(&self, on: &(impl Target + ?Sized), bytes: &[u8]) -> Result<()> {
        for area in &self.direct {
            storage::write(on, area.start, part(bytes, area))?;
        }
        for (_, area, place) in &self.moved {
            storage::write(on, *place, part(bytes, area))?;
        }
        storage::sync(on)
    }
}

/// Writes a range's bytes, and syncs: what another header had there is gone then. What is there
/// already is written, too, since it may be in memory only.
pub(crate) fn copy(on: &(impl Target + ?Sized), bytes: &[u8], range: Range<u64>) -> Result<()> {
    storage::write(on, range.start, part(bytes, &range))?;
    storage::sync(on)
}

/// Returns the first place in a range where `len` bytes are free.
pub(crate) fn free_place(taken: &[Range<u64>], len: u64, within: Range<u64>) -> Option<u64> {
    const ALIGNMENT: u64 = 4096;
    let mut places: Vec<u64> = taken.iter().map(|area| area.end.next_multiple_of(ALIGNMENT)).collect();
    places.push(within.start.next_multiple_of(ALIGNMENT));
    places.sort_unstable();
    let fits = |&place: &u64| {
        let own = place..place + len;
        within.start <= place && own.end <= within.end && taken.iter().all(|other| apart(&own, other))
    };
    places.into_iter().find(fits)
}

pub(crate) fn apart(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.end <= other.start || other.end <= one.start
}

/// Returns a part of a backup: its header was read, so its areas lie within.
pub(crate) fn part<'b>(bytes: &'b [u8], range: &Range<u64>) -> &'b [u8] {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[at(range.start)..at(range.end)]
}
