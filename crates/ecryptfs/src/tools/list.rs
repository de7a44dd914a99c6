//! The contents of a lower tree, by plain names.

use std::path::Path;

use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, ProgressWatch, Summary, TreeKeys};
use crate::{ErrorKind, FileHeader, Result};

/// An entry.
#[derive(Debug)]
pub struct ListEntry<'a> {
    /// The lower path.
    pub lower: &'a Path,
    /// The plain path, from the tree's root.
    pub plain: &'a Path,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// A file's header. `None` for a plain file.
    pub header: Option<FileHeader>,
    /// The plain size in bytes.
    pub size: u64,
    /// The target of a symlink.
    pub target: Option<Vec<u8>>,
}

/// Reports every entry of a tree. Contents need no key to be listed, encrypted names do. With
/// `passthrough`, a file of zeros has its lower length.
///
/// # Errors
/// Only when the tree does not exist. Failures in it are reported to the watch.
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
