//! A plain path's place in a lower tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use super::tree::{PinnedEntry, TreeFolder};
use super::walk::EntryKind;
use super::{LowerFile, TreeKeys};
use crate::name::{self, long};
use crate::{Error, ErrorKind, Result};

/// Opens the file at a plain path in a lower folder. Each name may be plain, or encrypted with an
/// available key. No symlink in the folder is followed.
///
/// # Errors
/// `BadOption` when the entry does not exist or is no file; the kinds of [`LowerFile::open`].
pub fn find(root: &Path, plain: &Path, keys: &mut TreeKeys) -> Result<LowerFile> {
    let mut lower = TreeFolder::open(root)?.itself()?;
    for component in plain.components() {
        let name = match component {
            Component::Normal(name) => name,
            Component::CurDir | Component::RootDir => continue,
            _ => {
                return Err(Error::new(ErrorKind::BadOption, "a path in the folder has no ..").in_file(plain));
            }
        };
        let missing = || {
            let context = format!("there is no {} in {}", Path::new(name).display(), lower.path().display());
            Error::new(ErrorKind::BadOption, context).in_file(plain)
        };
        if lower.kind() != EntryKind::Folder {
            return Err(missing());
        }
        lower = entry(&lower.folder()?, name, keys)?.ok_or_else(missing)?;
    }
    if lower.kind() != EntryKind::File {
        return Err(Error::new(ErrorKind::BadOption, "it is no file").in_file(lower.path()));
    }
    LowerFile::of_entry(&lower)
}

fn entry(folder: &TreeFolder, name: &OsStr, keys: &mut TreeKeys) -> Result<Option<PinnedEntry>> {
    if let Some(plain) = folder.find(name.as_bytes())? {
        return Ok(Some(plain));
    }
    for lower in folder.names()? {
        if (name::is_encoded(&lower) || long::is_long(&lower))
            && keys.decode_entry(folder, &lower).is_ok_and(|decoded| decoded == name.as_bytes())
        {
            return folder.find(&lower);
        }
    }
    Ok(None)
}
