//! The only way to change a header.
//!
//! ```text
//!   lock -> read again -> the same? -> edit the document -> parse it as a reader would
//!     -> secure what was read
//!     -> what must be on disk before -> copy, copy
//! ```

mod config;
pub(super) mod keyslots;
mod restore;
pub(super) mod room;
mod tidy;
pub(super) mod tokens;
pub(super) mod unwiped;
pub(super) mod words;

use serde_json::{Map, Value};

use super::Header;
use super::binary::{Binary, HeaderCopy};
use super::metadata::Metadata;
use super::store::{self, Copies};
use crate::lock::LockTo;
use crate::{Error, ErrorKind, Result, Target};

impl Header {
    /// Changes the header that was read from `on`, and keeps the header on disk afterwards.
    ///
    /// `edit` changes the document; parts that this build does not understand stay. `before` gets
    /// the result of `edit`, and puts on disk, synced, the bytes that the new header relies on: a
    /// keyslot's area, or moved data. It runs when nothing but a write can fail any more. A crash
    /// at any instant leaves the old header or the new header.
    ///
    /// Fails with `Busy` when another program changed the header since it was read, or keeps its
    /// lock; `Ambiguous` when a copy's place may contain something else; `BadOption` when the
    /// metadata would not fit its area; `BadHeader` when no reader would accept it; the errors of
    /// `edit` and `before`; `Io`.
    pub(super) fn update<T, D: Target + ?Sized>(
        &mut self,
        on: &D,
        edit: impl FnOnce(&mut Map<String, Value>, &Metadata) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        self.update_all(on, |_, document, metadata| edit(document, metadata), before)
    }

    /// Like [`Header::update`], with changes of the binary header.
    ///
    /// Fails with the errors of [`Header::update`].
    pub(super) fn update_all<T, D: Target + ?Sized>(
        &mut self,
        on: &D,
        edit: impl FnOnce(&mut Binary, &mut Map<String, Value>, &Metadata) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        self.update_with(on, false, edit, before)
    }

    /// Like [`Header::update_all`]. With `is_wiped`, the noted areas are wiped by now.
    fn update_with<T, D: Target + ?Sized>(
        &mut self,
        on: &D,
        is_wiped: bool,
        edit: impl FnOnce(&mut Binary, &mut Map<String, Value>, &Metadata) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        let _lock = on.lock(LockTo::Change)?;
        let now = store::unchanged(on, &self.stored)?;
        now.damage.as_ref().map_or(Ok(()), |damage| damage.may_be_overwritten())?;
        let mut document = now.metadata.document.clone();
        let mut binary = now.binary.clone();
        // Before a new keyslot may use the area.
        if is_wiped || unwiped::wipe_noted(on, &now) {
            unwiped::forget(&mut document);
        }
        let told = edit(&mut binary, &mut document, &now.metadata)?;
        let seqid = now.binary.seqid.max(binary.seqid).checked_add(1);
        let seqid =
            seqid.ok_or_else(|| Error::new(ErrorKind::BadHeader, "its updates cannot be counted on"))?;
        let copies = Copies::new(Binary { seqid, ..binary }, &document)?;
        copies.metadata()?;
        // The header that was read may be in memory only, and the disk have an older one, which
        // needs what is overwritten from here on; of a good copy and a bad one it may have the bad
        // one.
        if !self.is_secured || now.damage.is_some() {
            store::secure(on, &now)?;
        }
        self.is_secured = false;
        before(&told)?;
        // Of a good copy and a bad one the good one is written last.
        copies.write(on, now.damage.map_or(HeaderCopy::First, |damage| damage.place))?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        self.stored = store::read(on)?.ok_or_else(gone)?;
        self.is_secured = true;
        Ok(told)
    }
}

#[cfg(test)]
mod tests;
