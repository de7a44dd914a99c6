//! The syncs of a tool: all of its output is on the disk when the tool ends with success.
//!
//! ```text
//!   the filesystem    at the end, through a descriptor from before the first write
//!   each new file     when it is complete, and each folder with its last entry: on filesystems of
//!                     which syncing all is not known to be enough
//! ```

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fsync, openat, syncfs};
use rustix::io::Errno;

use crate::{Error, Result, durable};

/// Makes all writes to the filesystem of a file durable that came after this file was opened, but
/// for those that [`sync_new`] and [`sync_entries`] see to. The kernel reports an error once to
/// each open file: one that is opened later than the first write may miss it.
pub(super) fn sync_all_of(file: &impl AsFd, path: &Path) -> Result<()> {
    syncfs(file).map_err(|e| unsafe_on_disk(path, e))
}

/// Makes a complete new file durable, where [`sync_all_of`] is not enough.
pub(super) fn sync_new(file: impl AsFd) -> io::Result<()> {
    if durable::is_on_own_disk(&file) { Ok(()) } else { Ok(fsync(file)?) }
}

/// Makes a folder's entries and attributes durable, where [`sync_all_of`] is not enough. The
/// descriptor may be O_PATH.
///
/// Fails with `Io`.
pub(super) fn sync_entries(folder: impl AsFd, path: &Path) -> Result<()> {
    if durable::is_on_own_disk(&folder) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(folder, ".", flags, Mode::empty()).and_then(fsync) {
        // A filesystem without fsync of folders.
        Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(unsafe_on_disk(path, e)),
    }
}

fn unsafe_on_disk(path: &Path, e: Errno) -> Error {
    Error::io(path, "what was written is not safe on the disk", e)
}
