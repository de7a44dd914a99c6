//! What is in a lower tree, by its plain names.

use std::path::Path;

use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, ProgressWatch, Summary, TreeKeys};
use crate::{ErrorKind, FileHeader, Result};

/// An entry.
#[derive(Debug)]
pub struct ListEntry<'a> {
    /// Where it is.
    pub lower: &'a Path,
    /// What it is called above, from the tree's root.
    pub plain: &'a Path,
    /// What it is.
    pub kind: EntryKind,
    /// A file's header; none for a plain file.
    pub header: Option<FileHeader>,
    /// Bytes above.
    pub size: u64,
    /// Where a symlink leads.
    pub target: Option<Vec<u8>>,
}

/// Tells of every entry of a tree. Contents need no key to be listed, encrypted names do. With
/// `passthrough` a file of zeros is as long as it lies there.
///
/// # Errors
/// Only when there is no such tree; what fails in it is told to the watch.
pub fn list(
    root: &Path,
    keys: &mut TreeKeys,
    passthrough: bool,
    watch: &mut dyn ProgressWatch,
    tell: &mut dyn FnMut(&ListEntry<'_>) -> Result<()>,
) -> Result<Summary> {
    let mut visit = List { tell, passthrough, summary: Summary::default() };
    walk(&Root::open(root, None)?, keys, watch, &mut visit);
    Ok(visit.summary)
}

struct List<'t> {
    tell: &'t mut dyn FnMut(&ListEntry<'_>) -> Result<()>,
    passthrough: bool,
    summary: Summary,
}

impl Visit for List<'_> {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        keys: &mut TreeKeys,
        _watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        let (mut header, mut target, mut size) = (None, None, 0);
        match found.kind {
            EntryKind::Folder => self.summary.folders += 1,
            EntryKind::Special => self.summary.others += 1,
            EntryKind::Symlink => {
                let lower = found.entry.target()?;
                let plain = keys.decode_target(&lower).map_err(|e| e.in_file(found.lower))?;
                size = plain.len() as u64;
                target = Some(plain);
                self.summary.others += 1;
            }
            EntryKind::File => {
                match LowerFile::of_entry(found.entry) {
                    Ok(lower) => {
                        size = lower.header.size();
                        header = Some(lower.header);
                    }
                    Err(e) if e.kind() == ErrorKind::Empty && !self.passthrough => {}
                    Err(e) if e.has_no_header() => size = found.about.len(),
                    Err(e) => return Err(e),
                }
                self.summary.files += 1;
                self.summary.bytes += size;
            }
        }
        (self.tell)(&ListEntry {
            lower: found.lower,
            plain: found.plain,
            kind: found.kind,
            header,
            size,
            target,
        })
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}
