//! A lower tree, one entry at a time, with its plain names.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{Keys, Watch};
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

    /// An entry failed.
    fn failed(&mut self);
}

/// Visits what is at a lower path and below it.
///
/// # Errors
/// Only when there is nothing at that path. All others are told to the watch.
pub(super) fn walk(root: &Path, keys: &mut Keys, watch: &mut dyn Watch, visit: &mut dyn Visit) -> Result<()> {
    fs::symlink_metadata(root).map_err(|e| Error::io(root, "cannot be looked at", e))?;
    entry(root, Path::new(""), keys, watch, visit);
    Ok(())
}

fn entry(lower: &Path, plain: &Path, keys: &mut Keys, watch: &mut dyn Watch, visit: &mut dyn Visit) {
    if let Err(error) = try_entry(lower, plain, keys, watch, visit) {
        visit.failed();
        watch.failed(lower, error);
    }
}

fn try_entry(
    lower: &Path,
    plain: &Path,
    keys: &mut Keys,
    watch: &mut dyn Watch,
    visit: &mut dyn Visit,
) -> Result<()> {
    let about = match fs::symlink_metadata(lower) {
        // Gone since it was listed.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        about => about.map_err(|e| Error::io(lower, "cannot be looked at", e))?,
    };
    let found = Found { lower, plain, about: &about, kind: Kind::of(&about) };
    visit.visit(&found, keys, watch)?;
    if found.kind != Kind::Folder {
        return Ok(());
    }
    match fs::read_dir(lower) {
        Err(e) => {
            visit.failed();
            watch.failed(lower, Error::io(lower, "cannot be listed", e));
        }
        Ok(entries) => {
            for next in entries {
                match next {
                    Ok(next) => {
                        let name = next.file_name();
                        match keys.decode_name(name.as_bytes()) {
                            Ok(decoded) => entry(&next.path(), &join(plain, decoded), keys, watch, visit),
                            Err(e) => {
                                visit.failed();
                                watch.failed(&next.path(), e.in_file(&next.path()));
                            }
                        }
                    }
                    Err(e) => {
                        visit.failed();
                        watch.failed(lower, Error::io(lower, "cannot be listed", e));
                        break;
                    }
                }
            }
        }
    }
    visit.leave(&found, keys)
}

pub(super) fn join(folder: &Path, name: Vec<u8>) -> PathBuf {
    folder.join(OsString::from_vec(name))
}
