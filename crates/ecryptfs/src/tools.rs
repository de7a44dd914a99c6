//! Tools for a lower tree that is not mounted.
//!
//! ```text
//!   walk        a lower tree, names decoded, one entry at a time     Watch: progress, failures
//!     +-- export -> Sink: folder | tar        check        list
//!     +-- rekey   headers in place            convert      headers to xattrs and back
//!     +-- rename  names under another key
//!   unfinished  the marks of a conversion that was interrupted
//!   survey      what a tree's headers say together, without any key     find: a plain path below
//!   fit         whether keys are a tree's own
//!   import      a plain tree: folder | tar -> maker -> a lower one
//!
//!   below: tree (folders and entries by descriptors), keys (which key opens what),
//!          lower (a file's header and its place), reader, writer, attributes (inherited: lists),
//!          links (files with several names), replace (names that others change meanwhile), sync
//!          (what makes the output durable)
//! ```
//! One file is open at a time and its contents are processed through one buffer: memory does not
//! grow with the tree, except for the names in each open folder, a line and a descriptor for each
//! file with several hard links, and each folder of an imported archive. A failed entry is reported
//! and skipped; the tools continue with the other entries.

mod attributes;
mod check;
mod convert;
mod export;
mod find;
mod fit;
mod import;
mod inherited;
mod keys;
mod links;
mod list;
mod lower;
mod maker;
mod reader;
mod rekey;
mod rename;
mod replace;
mod sink;
mod survey;
mod sync;
mod tree;
mod unfinished;
mod walk;
mod writer;

use std::path::Path;

use crate::Error;

pub use check::{CheckFinding, check};
pub use convert::convert;
pub use export::{ExportOptions, export};
pub use find::find;
pub use fit::{Fit, fit};
pub use import::{ImportOptions, import, import_tar};
pub use keys::TreeKeys;
pub use list::{ListEntry, list};
pub use lower::LowerFile;
pub use reader::PlainReader;
pub use rekey::{KeyChange, rekey};
pub use rename::rename;
pub use sink::{ArchiveFile, FolderSink, Sink, TarSink};
pub use survey::Survey;
pub use tree::check_outside;
pub use walk::EntryKind;

/// Receives progress and failures.
pub trait ProgressWatch {
    /// Reports `bytes` more plain bytes.
    fn advance(&mut self, bytes: u64);

    /// Reports an entry that failed, and was skipped.
    fn failed(&mut self, lower: &Path, error: Error);

    /// Reports something about an entry that was not skipped.
    fn warned(&mut self, _path: &Path, _what: &str) {}
}

/// The counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files, each counted once even with several hard links.
    pub files: u64,
    /// Folders.
    pub folders: u64,
    /// Symlinks, further hard links and special files.
    pub others: u64,
    /// Plain bytes of the files.
    pub bytes: u64,
    /// Files without a change.
    pub unchanged: u64,
    /// Entries that failed.
    pub failed: u64,
}
