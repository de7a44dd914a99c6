//! The one way by which a LUKS1 header changes.
//!
//! ```text
//!   lock -> read again -> the same? -> edit -> parse it as a reader would -> what must be on disk before -> its sectors
//! ```
//!
//! There is one copy, without a checksum, in two sectors, and a disk promises to write one sector
//! whole and no more. A change of one sector is one write. Keyslot 6 alone lies in both: when it
//! comes, its end is on disk before the sector that says it is in use; when it goes, that sector is
//! on disk first. So no reader ever sees half of it. Keyslot 7 lies in the second one, away from
//! the key's digest; where both headers have another there, it is under another number for a while
//! (`restore`).

mod config;
mod keyslots;
mod places;
mod restore;

use std::ops::Range;

use super::phdr::{LEN, Phdr};
use super::{Header, read};
use crate::lock::LockTo;
use crate::{Error, ErrorKind, Result, Target, storage};

const SECTOR: usize = 512;
/// The keyslot that lies in both sectors.
const STRADDLER: usize = 6;

/// Both sectors, in an order.
type Sectors = [Range<usize>; 2];
const FIRST_FIRST: Sectors = [0..SECTOR, SECTOR..LEN];
const SECOND_FIRST: Sectors = [SECTOR..LEN, 0..SECTOR];

impl Header {
    /// Changes the header that was read from `on`, and takes over what is there afterwards.
    ///
    /// `edit` changes the fields; of keyslot 6 and what else lies in the other sector, one at a
    /// time. `before` gets what `edit` returned and puts on disk, synced, whatever the new header
    /// relies on. A crash at any instant leaves the old header or the new one.
    ///
    /// # Errors
    /// `Busy` when somebody changed the header since it was read, or keeps its lock; `BadHeader`
    /// when no reader would take it; those of `edit` and `before`; `Io`.
    pub(super) fn update<T>(
        &mut self,
        on: &(impl Target + ?Sized),
        edit: impl FnOnce(&mut Phdr) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        let _lock = on.lock(LockTo::Change)?;
        let now = read(on)?.filter(|now| now.bytes == self.phdr.bytes);
        let mut new =
            now.ok_or_else(|| Error::new(ErrorKind::Busy, "the header was changed meanwhile; try again"))?;
        let told = edit(&mut new)?;
        let bytes = new.encode();
        Phdr::parse(&bytes)?;
        before(&told)?;
        write(on, &self.phdr.bytes, &bytes, order(&self.phdr, &new).unwrap_or(SECOND_FIRST))?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        self.phdr = read(on)?.ok_or_else(gone)?;
        Ok(told)
    }
}

/// Writes a header where there is none: the sector with the magic last.
pub(crate) fn write_new(to: &(impl Target + ?Sized), bytes: &[u8; LEN]) -> Result<()> {
    for range in SECOND_FIRST {
        storage::write(to, range.start as u64, &bytes[range])?;
        storage::sync(to)?;
    }
    Ok(())
}

/// In which order the sectors are written such that a reader in between finds keyslots of the old
/// header or the new one, and each of them whole: what lies in the second sector must not go before
/// the first one does, or come after it. None where neither order does, as none is needed for a
/// change of one keyslot.
fn order(old: &Phdr, new: &Phdr) -> Option<Sectors> {
    let mut pairs = old.slots.iter().zip(&new.slots).skip(STRADDLER);
    if pairs.clone().all(|(old, new)| old.is_none() || old == new) {
        return Some(SECOND_FIRST);
    }
    pairs.all(|(old, new)| new.is_none() || old == new).then_some(FIRST_FIRST)
}

/// Writes the sectors that differ, each on disk before the next.
fn write(on: &(impl Target + ?Sized), old: &[u8; LEN], new: &[u8; LEN], sectors: Sectors) -> Result<()> {
    for range in sectors.into_iter().filter(|range| old[range.clone()] != new[range.clone()]) {
        storage::write(on, range.start as u64, &new[range])?;
        storage::sync(on)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
