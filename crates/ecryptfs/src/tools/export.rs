//! The plain form of a lower tree.

use std::io::Read;
use std::path::Path;

use super::attributes::TreeAttributes;
use super::links::CopiedLinks;
use super::tree::within_itself;
use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, PlainReader, ProgressWatch, Sink, Summary, TreeKeys};
use crate::{Error, ErrorKind, Result};

/// How a tree is decrypted.
#[derive(Debug, Clone, Copy)]
pub struct ExportOptions {
    /// Files without a header are copied unchanged.
    pub passthrough: bool,
    /// A missing extent is an error, not zeros.
    pub strict: bool,
}

/// Decrypts a lower tree into a sink.
///
/// # Errors
/// Only when the tree does not exist, or when the output cannot be made durable. Failures in the
/// tree are reported to the watch.
pub fn export(
    root: &Path,
    keys: &mut TreeKeys,
    how: ExportOptions,
    sink: &mut dyn Sink,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    let root = Root::open(root, None)?;
    let mut visit = Run { sink, how, linked: CopiedLinks::new(), summary: Summary::default() };
    walk(&root, keys, watch, &mut visit);
    visit.sink.sync()?;
    Ok(visit.summary)
}

struct Run<'s> {
    sink: &'s mut dyn Sink,
    how: ExportOptions,
    /// The plain paths of files with several names.
    linked: CopiedLinks,
    summary: Summary,
}

impl Visit for Run<'_> {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        let attributes = TreeAttributes::to_copy(found.entry)?;
        let to_lower = |e: Error| e.in_file(found.lower);
        match found.kind {
            EntryKind::Folder if self.sink.is_target(found.entry.inode()) => {
                return Err(within_itself(found.lower));
            }
            EntryKind::Folder => {
                self.sink.folder(found.plain, &attributes).map_err(to_lower)?;
                self.summary.folders += 1;
            }
            EntryKind::Symlink => {
                let target = keys.decode_target(&found.entry.target()?).map_err(to_lower)?;
                self.sink.symlink(found.plain, &target, &attributes).map_err(to_lower)?;
                self.summary.others += 1;
            }
            EntryKind::Special => {
                self.sink.special(found.plain, &attributes).map_err(to_lower)?;
                self.summary.others += 1;
            }
            EntryKind::File => {
                if let Some(first) = self.linked.copy_of(found.entry) {
                    self.sink.link(found.plain, &first, &attributes).map_err(to_lower)?;
                    self.summary.others += 1;
                    return Ok(());
                }
                self.file(found, &attributes, keys, watch)?;
                self.linked.remember(found.entry, found.plain);
            }
        }
        Ok(())
    }

    fn leave(&mut self, found: &WalkEntry<'_>, _keys: &mut TreeKeys) -> Result<()> {
        self.sink.leave(found.plain, &TreeAttributes::of(found.entry)?)
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}

impl Run<'_> {
    fn file(
        &mut self,
        found: &WalkEntry<'_>,
        attributes: &TreeAttributes,
        keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        let in_file = |e: Error| e.in_file(found.lower);
        let size = match LowerFile::of_entry(found.entry) {
            Ok(lower) => {
                let key = keys.unlock(&lower.header).map_err(in_file)?;
                let size = lower.header.size();
                let mut plain = Watched { reader: PlainReader::new(&lower, &key, self.how.strict)?, watch };
                self.sink.file(found.plain, attributes, size, &mut plain).map_err(in_file)?;
                size
            }
            // The kernel creates such files before it writes their header.
            Err(e) if e.kind() == ErrorKind::Empty && !self.how.passthrough => {
                self.sink.file(found.plain, attributes, 0, &mut std::io::empty()).map_err(in_file)?;
                0
            }
            Err(e) if e.has_no_header() && self.how.passthrough => {
                let mut plain = Watched { reader: found.entry.open(false)?, watch };
                self.sink.file(found.plain, attributes, found.about.len(), &mut plain).map_err(in_file)?;
                found.about.len()
            }
            Err(e) => return Err(e),
        };
        self.summary.files += 1;
        self.summary.bytes += size;
        Ok(())
    }
}

/// Reports the bytes that are read to the watch.
struct Watched<'w, R> {
    reader: R,
    watch: &'w mut dyn ProgressWatch,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(out)?;
        self.watch.advance(read as u64);
        Ok(read)
    }
}
