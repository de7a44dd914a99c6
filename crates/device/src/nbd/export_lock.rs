//! The locks of an NBD server's export: one while it is open for writing, one for the moment of a
//! header's update.
//!
//! NBD has no locks: two programs that write to one export would destroy each other's volume, and
//! two that add a keyslot would lose one of both. So files for each address of the export, in the
//! user's directories, are locked. That keeps away the same user's programs on this host only, and
//! only where both name the same export of the same server: its default export has two names.
//!
//! The directory of control sockets depends on the environment, which a service or a job of cron
//! has not got: a second directory depends on the user alone.

use std::fs::{File, canonicalize};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::NbdAddress;
use crate::lock::lock as lock_image;
use crate::runtime::RuntimeDirectory;
use crate::{ErrorKind, Result, UpdateLock};

/// The length in bytes of the digest in a file's name.
const DIGEST: usize = 16;

/// Locks an export, or refuses at once. Returns the files that hold the lock; fewer where this user
/// has no directory for them.
///
/// # Errors
/// `Locked` when another program has the export open for writing.
pub fn lock_export(address: &NbdAddress) -> Result<Vec<File>> {
    let mut locked = Vec::new();
    for file in files(address, "export") {
        match lock_image(&file, &address.to_string(), true) {
            Err(e) if e.kind() == ErrorKind::Locked => return Err(e),
            Err(e) => log::warn!("{e}"),
            Ok(()) => locked.push(file),
        }
    }
    Ok(locked)
}

/// Returns the lock of updates of an export's header; `None` where this user has no directory for
/// its files.
pub(super) fn update_lock(address: &NbdAddress) -> Option<Arc<UpdateLock>> {
    let files = files(address, "header");
    (!files.is_empty()).then(|| Arc::new(UpdateLock::new(&address.to_string(), files)))
}

/// Opens the files of one of an export's locks, always in the same order.
fn files(address: &NbdAddress, lock: &str) -> Vec<File> {
    let directories = directories(address);
    let mut files = Vec::new();
    let mut identities = address.identities();
    identities.sort();
    identities.dedup();
    for (identity, directory) in
        identities.iter().flat_map(|identity| directories.iter().map(move |directory| (identity, directory)))
    {
        let digest = Sha256::digest(identity.as_bytes());
        let name: String = digest.iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect();
        match open(&directory.join(format!("{lock}-{name}.lock"))) {
            Ok(file) => files.push(file),
            Err(e) => log::warn!("{address}: cannot be locked: another program may write to it: {e}"),
        }
    }
    files
}

/// This user's directories for locks, which are there: that of the environment, and that of the
/// user's number.
fn directories(address: &NbdAddress) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in [RuntimeDirectory::of_user(), RuntimeDirectory::of_number()] {
        let made = directory.make().map_err(|e| e.to_string());
        match made.and_then(|()| canonicalize(directory.path()).map_err(|e| e.to_string())) {
            Ok(path) if found.contains(&path) => {}
            Ok(path) => found.push(path),
            Err(e) => log::warn!("{address}: cannot be locked: another program may write to it: {e}"),
        }
    }
    found
}

fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}
