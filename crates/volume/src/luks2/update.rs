//! The one way by which a header changes.
//!
//! ```text
//!   lock -> read again -> the same? -> edit the document -> parse it as a reader would -> what must be on disk before -> copy, copy
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
    /// Changes the header that was read from `on`, and takes over what is there afterwards.
    ///
    /// `edit` changes the document: what this build does not understand stays in it. `before` gets
    /// what `edit` returned and puts on disk, synced, whatever the new header relies on: a
    /// keyslot's area, or data that has moved. It runs when nothing but a write can fail any more.
    /// A crash at any instant leaves the old header or the new one.
    ///
    /// # Errors
    /// `Busy` when somebody changed the header since it was read, or keeps its lock; `Ambiguous`
    /// when what stands in a copy's place may be something else; `BadOption` when the metadata
    /// would not fit its area; `BadHeader` when no reader would take it; those of `edit` and
    /// `before`; `Io`.
    pub(super) fn update<T, D: Target + ?Sized>(
        &mut self,
        on: &D,
        edit: impl FnOnce(&mut Map<String, Value>, &Metadata) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        self.update_all(on, |_, document, metadata| edit(document, metadata), before)
    }

    /// As [`Header::update`], where the binary header changes, too.
    ///
    /// # Errors
    /// Its.
    pub(super) fn update_all<T, D: Target + ?Sized>(
        &mut self,
        on: &D,
        edit: impl FnOnce(&mut Binary, &mut Map<String, Value>, &Metadata) -> Result<T>,
        before: impl FnOnce(&T) -> Result<()>,
    ) -> Result<T> {
        self.update_with(on, false, edit, before)
    }

    /// As [`Header::update_all`], where what the header notes as not wiped may be wiped by now.
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
        // Before a new keyslot may lie there.
        if is_wiped || unwiped::wipe_noted(on, &now) {
            unwiped::forget(&mut document);
        }
        let told = edit(&mut binary, &mut document, &now.metadata)?;
        let seqid = now.binary.seqid.max(binary.seqid).checked_add(1);
        let seqid =
            seqid.ok_or_else(|| Error::new(ErrorKind::BadHeader, "its updates cannot be counted on"))?;
        let copies = Copies::new(Binary { seqid, ..binary }, &document)?;
        copies.metadata()?;
        before(&told)?;
        if now.damage.is_some() {
            // The good one may be in memory only, and the disk have the other, which is written
            // first.
            store::secure(on, &now)?;
        }
        // Of a good copy and a bad one the good one is written last.
        copies.write(on, now.damage.map_or(HeaderCopy::First, |damage| damage.place))?;
        let gone = || Error::new(ErrorKind::Io, "the header cannot be read back");
        self.stored = store::read(on)?.ok_or_else(gone)?;
        Ok(told)
    }
}

#[cfg(test)]
mod tests;
