//! Other keys for the files of a tree. Contents stay as they are: only headers change.

use std::path::Path;
use std::sync::Arc;

use super::walk::{Found, Kind, Root, Visit, walk};
use super::{Keys, Lower, Summary, Watch};
use crate::lock::Access;
use crate::{AuthToken, Error, ErrorKind, Header, Keyring, Result, Signature};

/// What becomes of the headers.
#[derive(Debug)]
pub enum Change {
    /// Every key that is at hand gives way to this one.
    Replace(Arc<AuthToken>),
    /// This one opens the files too.
    Add(Arc<AuthToken>),
    /// This one no longer does.
    Remove(Signature),
}

/// Changes who opens the files of a tree, or one file. A run that was interrupted is taken up by the same again: files that
/// are as they should be stay so.
///
/// # Errors
/// Only when there is no such tree, or it is in use (`Busy`); what fails in it is told to the watch.
pub fn rekey(root: &Path, keys: &mut Keys, change: &Change, watch: &mut dyn Watch) -> Result<Summary> {
    let root = Root::open(root, Some(Access::Alone))?;
    let mut visit = Rekey { change, summary: Summary::default() };
    walk(&root, keys, watch, &mut visit);
    Ok(visit.summary)
}

struct Rekey<'c> {
    change: &'c Change,
    summary: Summary,
}

impl Visit for Rekey<'_> {
    fn visit(&mut self, found: &Found<'_>, keys: &mut Keys, watch: &mut dyn Watch) -> Result<()> {
        if found.kind != Kind::File {
            return Ok(());
        }
        match Lower::open_alone(found.entry, true) {
            Ok(mut lower) => match self.changed(&lower.header, keys).map_err(|e| e.in_file(found.lower))? {
                None => self.summary.unchanged += 1,
                Some(new) => {
                    lower.replace_packets(new)?;
                    self.summary.files += 1;
                    watch.advance(Header::PARSED as u64);
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
    /// The header as it should be; none when it is.
    fn changed(&self, header: &Header, keys: &mut Keys) -> Result<Option<Header>> {
        let has = |signature| header.packets().iter().any(|packet| packet.signature() == signature);
        let mut new = header.clone();
        match self.change {
            Change::Replace(token) | Change::Add(token) => {
                let replaces = matches!(self.change, Change::Replace(_));
                let ours: Vec<_> = header.packets().iter().map(|packet| packet.signature()).collect();
                let old = |keys: &Keys| {
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
                // What is written must open, and to the same key.
                let read = read_back(&new)?;
                let mut only = Keyring::new();
                only.add(token.clone());
                if read.unlock(&only)? != key {
                    return Err(Error::new(ErrorKind::BadHeader, "the new header would not open"));
                }
            }
            Change::Remove(signature) => {
                if !has(*signature) {
                    return Ok(None);
                }
                new.remove(*signature)?;
                // Somebody at hand opens it afterwards.
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

fn read_back(header: &Header) -> Result<Header> {
    match header.place() {
        crate::Place::File => Header::read(&header.to_file()),
        crate::Place::Xattr => Header::read_xattr(&header.to_xattr()),
    }
}
