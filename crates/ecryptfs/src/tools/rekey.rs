//! Other keys for the files of a tree. Contents stay unchanged: only headers change.

use std::path::Path;
use std::sync::Arc;

use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, ProgressWatch, Summary, TreeKeys};
use crate::lock::LockMode;
use crate::{AuthToken, Error, ErrorKind, FileHeader, Keyring, Result, Signature};

/// A change of the headers.
#[derive(Debug)]
pub enum KeyChange {
    /// This key replaces every available key.
    Replace(Arc<AuthToken>),
    /// This key opens the files too.
    Add(Arc<AuthToken>),
    /// This key no longer opens the files.
    Remove(Signature),
}

/// Changes who opens the files of a tree, or one file. A run that was interrupted is taken up by
/// the same again: files that are as they should be stay so, and are synced.
///
/// # Errors
/// Only when the tree does not exist, or is in use (`Busy`). Failures in it are reported to the
/// watch.
pub fn rekey(
    root: &Path,
    keys: &mut TreeKeys,
    change: &KeyChange,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    let root = Root::open(root, Some(LockMode::Alone))?;
    let mut visit = Rekey { change, summary: Summary::default() };
    walk(&root, keys, watch, &mut visit);
    Ok(visit.summary)
}

struct Rekey<'c> {
    change: &'c KeyChange,
    summary: Summary,
}

impl Visit for Rekey<'_> {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        if found.kind != EntryKind::File {
            return Ok(());
        }
        match LowerFile::open_alone(found, true) {
            Ok(mut lower) => match self.changed(&lower.header, keys).map_err(|e| e.in_file(found.lower))? {
                None => {
                    // A run before this one may have failed to sync it.
                    lower.write_again()?;
                    self.summary.unchanged += 1;
                }
                Some(new) => {
                    lower.replace_packets(new)?;
                    self.summary.files += 1;
                    watch.advance(FileHeader::PARSED as u64);
                }
            },
            Err(e) if e.has_no_header() => self.summary.unchanged += 1,
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn needs_names(&self) -> bool {
        false
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}

impl Rekey<'_> {
    /// Returns the changed header, or `None` when it needs no change.
    fn changed(&self, header: &FileHeader, keys: &mut TreeKeys) -> Result<Option<FileHeader>> {
        let has = |signature| header.packets().iter().any(|packet| packet.signature() == signature);
        let mut new = header.clone();
        match self.change {
            KeyChange::Replace(token) | KeyChange::Add(token) => {
                let replaces = matches!(self.change, KeyChange::Replace(_));
                let ours: Vec<_> = header.packets().iter().map(|packet| packet.signature()).collect();
                let old = |keys: &TreeKeys| {
                    let mut old = ours.clone();
                    old.retain(|&one| one != token.signature() && keys.ring().find(one).is_some());
                    old
                };
                if has(token.signature()) && (!replaces || old(keys).is_empty()) {
                    return Ok(None);
                }
                let key = keys.unlock(header)?;
                new.add(&key, token)?;
                if replaces {
                    for signature in old(keys) {
                        new.remove(signature)?;
                    }
                }
                // The written header must open, with the same key.
                let read = read_back(&new)?;
                let mut only = Keyring::new();
                only.add(token.clone());
                if read.unlock(&only)? != key {
                    return Err(Error::new(ErrorKind::BadHeader, "the new header would not open"));
                }
            }
            KeyChange::Remove(signature) => {
                if !has(*signature) {
                    return Ok(None);
                }
                new.remove(*signature)?;
                // Another available key opens it afterwards.
                let mut others = Keyring::new();
                keys.ring()
                    .iter()
                    .filter(|one| one.signature() != *signature)
                    .for_each(|one| others.add(one.clone()));
                read_back(&new)?.unlock(&others)?;
            }
        }
        Ok(Some(new))
    }
}

fn read_back(header: &FileHeader) -> Result<FileHeader> {
    match header.place() {
        crate::HeaderLocation::File => FileHeader::read(&header.to_file()),
        crate::HeaderLocation::Xattr => FileHeader::read_xattr(&header.to_xattr()),
    }
}
