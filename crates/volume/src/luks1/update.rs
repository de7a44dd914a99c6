//! The only way to change a LUKS1 header.
//!
//! ```text
//!   lock -> read again -> the same? -> edit -> parse it as a reader would -> secure what was read
//!     -> what must be on disk before -> its sectors
//! ```
//!
//! The header has one copy, without a checksum, in two sectors, and a disk guarantees to write one
//! sector as a whole, and no more. A change of one sector is one write. Only keyslot 6 lies in
//! both: when it is added, its end is on disk before the sector that marks it as used; when it is
//! removed, that sector is on disk first. So no reader ever sees half of it. Keyslot 7 lies in the
//! second sector, away from the key's digest; where old and new header have different ones, the new
//! one temporarily has another number (`restore`).

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
    /// Changes the header that was read from `on`, and updates this value.
    ///
    /// `edit` changes the fields; of keyslot 6 and the rest of the second sector, one at a time.
    /// `before` gets the result of `edit` and puts everything on disk, synced, that the new header
    /// relies on. A crash at any instant leaves the old header or the new one. Fails with `Busy`
    /// when another program has changed the header since it was read, or keeps its lock; with
    /// `BadHeader` when no reader would accept it; with the errors of `edit` and `before`; with
    /// `Io`.
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
        // The header that was read may be in memory only, and the disk have an older one.
        if !self.is_secured {
            write_new(on, &self.phdr.bytes)?;
        }
        self.is_secured = false;
        before(&told)?;
        write(on, &self.phdr.bytes, &bytes, order(&self.phdr, &new).unwrap_or(SECOND_FIRST))?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        self.phdr = read(on)?.ok_or_else(gone)?;
        self.is_secured = true;
        Ok(told)
    }
}

/// Writes a header where there is none, or again where it is: the sector with the magic last.
pub(crate) fn write_new(to: &(impl Target + ?Sized), bytes: &[u8; LEN]) -> Result<()> {
    for range in SECOND_FIRST {
        storage::write(to, range.start as u64, &bytes[range])?;
        storage::sync(to)?;
    }
    Ok(())
}

/// Returns the order of the sectors' writes in which a reader in between finds only whole keyslots
/// of the old header or the new one: a keyslot of the second sector must not be removed before the
/// first sector is written, or added after it. Returns `None` where neither order suffices, which
/// no change of one keyslot needs.
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
