//! The one way by which a LUKS1 header changes.
//!
//! ```text
//!   lock -> read again -> the same? -> edit -> parse it as a reader would -> what must be on disk before -> its sectors
//! ```
//!
//! There is one copy, without a checksum, in two sectors, and a disk promises to write one sector whole and no more. A change of
//! one sector is one write. Keyslot 6 alone lies in both: when it comes, its end is on disk before the sector that says it is in
//! use; when it goes, that sector is on disk first. So no reader ever sees half of it.

mod config;
mod keyslots;
mod places;
mod restore;

use super::phdr::{LEN, Phdr};
use super::{Header, read};
use crate::lock::LockTo;
use crate::{Error, ErrorKind, Result, Target, storage};

const SECTOR: usize = 512;
/// The keyslot that lies in both sectors.
const STRADDLER: usize = 6;

impl Header {
    /// Changes the header that was read from `on`, and takes over what is there afterwards.
    ///
    /// `edit` changes the fields; of keyslot 6 and what else lies in the other sector, one at a time. `before` gets what `edit` returned and
    /// puts on disk, synced, whatever the new header relies on. A crash at any instant leaves the old header or the new one.
    ///
    /// # Errors
    /// `Busy` when somebody changed the header since it was read, or keeps its lock; `BadHeader` when no reader would take it;
    /// those of `edit` and `before`; `Io`.
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
        let goes = new.slots[STRADDLER].is_none();
        write(on, &self.phdr.bytes, &bytes, goes)?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        self.phdr = read(on)?.ok_or_else(gone)?;
        Ok(told)
    }
}

/// Writes a header where there is none: the sector with the magic last.
pub(crate) fn write_new(to: &(impl Target + ?Sized), bytes: &[u8; LEN]) -> Result<()> {
    for range in [SECTOR..LEN, 0..SECTOR] {
        storage::write(to, range.start as u64, &bytes[range])?;
        storage::sync(to)?;
    }
    Ok(())
}

/// Writes the sectors that differ, each on disk before the next: the first one first when it says that keyslot 6 is gone.
fn write(on: &(impl Target + ?Sized), old: &[u8; LEN], new: &[u8; LEN], first_first: bool) -> Result<()> {
    let mut sectors = [0..SECTOR, SECTOR..LEN];
    if !first_first {
        sectors.reverse();
    }
    for range in sectors.into_iter().filter(|range| old[range.clone()] != new[range.clone()]) {
        storage::write(on, range.start as u64, &new[range])?;
        storage::sync(on)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
