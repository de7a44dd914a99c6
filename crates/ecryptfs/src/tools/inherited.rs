//! Access control lists that a new entry inherits from its folder: the entry's mode alone does not
//! say then which users may read it.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{getxattr, removexattr};
use rustix::io::Errno;

use crate::{Error, Result, proc_path};

/// The xattr of an entry's list.
pub(super) const ACCESS: &CStr = c"system.posix_acl_access";
/// The xattr of the list that a folder's new entries get.
pub(super) const DEFAULT: &CStr = c"system.posix_acl_default";

/// Removes all lists of a new entry. The path is for messages.
///
/// Fails with `Io`.
pub(super) fn close_to_others(new: impl AsFd, path: &Path) -> Result<()> {
    remove_lists(new, &[])
        .map_err(|e| Error::io(path, "the access that it inherits from its folder cannot be removed", e))
}

/// Removes the lists that are not among `kept`. The descriptor may be O_PATH, but of no symlink.
///
/// Fails with the error of a list that is there and cannot be removed.
pub(super) fn remove_lists(entry: impl AsFd, kept: &[(CString, Vec<u8>)]) -> std::result::Result<(), Errno> {
    let link = proc_path(entry);
    for list in [ACCESS, DEFAULT] {
        let is_kept = kept.iter().any(|(name, _)| **name == *list);
        if is_kept {
            continue;
        }
        let removed = getxattr(&*link, list, &mut [0_u8; 0][..]).and_then(|_| removexattr(&*link, list));
        match removed {
            // The list is missing, or the filesystem has none.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            removed => removed?,
        }
    }
    Ok(())
}
