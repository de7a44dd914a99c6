//! What can be done with a lower tree without mounting it.
//!
//! ```text
//!   walk        a lower tree, names decoded, one entry at a time     Watch: progress, and what failed on the way
//!     +-- export -> Sink: folder | tar        check        list
//!     +-- rekey   headers in place            convert      headers to xattrs and back
//!     +-- rename  names under another key
//!   survey      what a tree's headers say together, without any key     find: a plain path below
//!   fit         whether keys are a tree's own
//!   import      a plain tree: folder | tar -> maker -> a lower one
//!
//!   below: tree (folders and entries by descriptors), keys (who opens what), lower (a file's header and its place), reader, writer, attributes
//! ```
//! One file is open at a time and its contents go through one buffer: memory does not grow with the
//! tree, save for the names in each folder on the way, a line for each file that has several hard
//! links, and each folder of an archive that is imported. An entry that fails is told of and
//! skipped; the others go on.

mod attributes;
mod check;
mod convert;
mod export;
mod find;
mod fit;
mod import;
mod keys;
mod list;
mod lower;
mod maker;
mod reader;
mod rekey;
mod rename;
mod sink;
mod survey;
mod tree;
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
pub use sink::{FolderSink, Sink, TarSink};
pub use survey::Survey;
pub use walk::EntryKind;

/// Who is told how it goes.
pub trait ProgressWatch {
    /// So many more plain bytes are done.
    fn advance(&mut self, bytes: u64);

    /// An entry failed, and was skipped.
    fn failed(&mut self, lower: &Path, error: Error);
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files, each hard link counted once.
    pub files: u64,
    /// Folders.
    pub folders: u64,
    /// Symlinks, further hard links and special files.
    pub others: u64,
    /// Plain bytes of the files.
    pub bytes: u64,
    /// Files that needed no change.
    pub unchanged: u64,
    /// Entries that failed.
    pub failed: u64,
}
