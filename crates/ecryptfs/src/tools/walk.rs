//! A lower tree, one entry at a time, with its plain names.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{Keys, Watch};
use crate::name::long;
use crate::{Error, Result};

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A symlink.
    Symlink,
    /// A pipe, a socket or a device.
    Special,
}

impl Kind {
    pub(super) fn of(about: &Metadata) -> Self {
        let kind = about.file_type();
        if kind.is_dir() {
            Self::Folder
        } else if kind.is_file() {
            Self::File
        } else if kind.is_symlink() {
            Self::Symlink
        } else {
            debug_assert!(
                kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()
            );
            Self::Special
        }
    }
}

/// An entry of a lower tree.
pub(super) struct Found<'a> {
    /// Where it is.
    pub(super) lower: &'a Path,
    /// What it is called above, from the tree's root.
    pub(super) plain: &'a Path,
    pub(super) about: &'a Metadata,
    pub(super) kind: Kind,
}

/// What is done with each entry.
pub(super) trait Visit {
    /// An entry; a folder before what is in it.
    fn visit(&mut self, found: &Found<'_>, keys: &mut Keys, watch: &mut dyn Watch) -> Result<()>;

    /// A folder after what is in it; one whose visit failed is not entered.
    fn leave(&mut self, _found: &Found<'_>, _keys: &mut Keys) -> Result<()> {
        Ok(())
    }

    /// A file beside a long name that nothing has.
    fn left_over(&mut self, _lower: &Path) {}

    /// Whether names are decoded; else keys of names need not be at hand.
    fn needs_names(&self) -> bool {
        true
    }

    /// An entry failed.
    fn failed(&mut self);
}

/// Visits what is at a lower path and below it.
///
/// # Errors
/// Only when there is nothing at that path. All others are told to the watch.
pub(super) fn walk(root: &Path, keys: &mut Keys, watch: &mut dyn Watch, visit: &mut dyn Visit) -> Result<()> {
    fs::symlink_metadata(root).map_err(|e| Error::io(root, "cannot be looked at", e))?;
    let mut walk = Walk { keys, watch, visit };
    let visited = walk.entry(root, Path::new(""));
    walk.note(root, visited);
    Ok(())
}

struct Walk<'w> {
    keys: &'w mut Keys,
    watch: &'w mut dyn Watch,
    visit: &'w mut dyn Visit,
}

impl Walk<'_> {
    /// Tells of a failure.
    fn note(&mut self, lower: &Path, done: Result<()>) {
        if let Err(error) = done {
            self.visit.failed();
            self.watch.failed(lower, error);
        }
    }

    fn entry(&mut self, lower: &Path, plain: &Path) -> Result<()> {
        let about = match fs::symlink_metadata(lower) {
            // Gone since it was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            about => about.map_err(|e| Error::io(lower, "cannot be looked at", e))?,
        };
        let found = Found { lower, plain, about: &about, kind: Kind::of(&about) };
        self.visit.visit(&found, self.keys, self.watch)?;
        if found.kind != Kind::Folder {
            return Ok(());
        }
        let listed = self.list(lower, plain);
        self.note(lower, listed.map_err(|e| Error::io(lower, "cannot be listed", e)));
        self.visit.leave(&found, self.keys)
    }

    fn list(&mut self, lower: &Path, plain: &Path) -> io::Result<()> {
        for next in fs::read_dir(lower)? {
            let next = next?;
            let (path, name) = (next.path(), next.file_name().into_vec());
            if let Some(of) = long::is_beside(&name) {
                if fs::symlink_metadata(join(lower, of.to_vec())).is_err() {
                    self.visit.left_over(&path);
                }
                continue;
            }
            let decoded = if self.visit.needs_names() { self.keys.decode_entry(&path) } else { Ok(name) };
            let visited = match decoded {
                Ok(name) => self.entry(&path, &join(plain, name)),
                Err(e) => Err(e.in_file(&path)),
            };
            self.note(&path, visited);
        }
        Ok(())
    }
}

pub(super) fn join(folder: &Path, name: Vec<u8>) -> PathBuf {
    folder.join(OsString::from_vec(name))
}

/// A path's last name.
pub(super) fn last(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}
