//! A plain path's place in a lower tree.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::TreeKeys;
use super::tree::TreeFolder;
use crate::name::{self, long};
use crate::{Error, ErrorKind, Result};

/// Follows a plain path through a lower folder. Each name may be plain, or encrypted with an
/// available key.
///
/// # Errors
/// `BadOption` when the entry does not exist; `Io`.
pub fn find(root: &Path, plain: &Path, keys: &mut TreeKeys) -> Result<PathBuf> {
    let mut lower = root.to_owned();
    for component in plain.components() {
        let name = match component {
            Component::Normal(name) => name,
            Component::CurDir | Component::RootDir => continue,
            _ => {
                return Err(Error::new(ErrorKind::BadOption, "a path in the folder has no ..").in_file(plain));
            }
        };
        lower = entry(&lower, name, keys)?.ok_or_else(|| {
            let context = format!("there is no {} in {}", Path::new(name).display(), lower.display());
            Error::new(ErrorKind::BadOption, context).in_file(plain)
        })?;
    }
    Ok(lower)
}

fn entry(folder: &Path, name: &OsStr, keys: &mut TreeKeys) -> Result<Option<PathBuf>> {
    let plain = folder.join(name);
    if fs::symlink_metadata(&plain).is_ok() {
        return Ok(Some(plain));
    }
    let opened = TreeFolder::open(folder)?;
    for lower in opened.names()? {
        if (name::is_encoded(&lower) || long::is_long(&lower))
            && keys.decode_entry(&opened, &lower).is_ok_and(|decoded| decoded == name.as_bytes())
        {
            return Ok(Some(opened.path_of(&lower)));
        }
    }
    Ok(None)
}
