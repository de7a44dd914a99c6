//! A folder mounted unchanged: the cost of FUSE alone, by the code that serves eCryptfs.

use std::path::Path;

use underseal_ecryptfs::fs::{LowerFolder, Mount, MountConfig};
use underseal_ecryptfs::{Error, ErrorKind, Result};

/// Mounts `lower` at `at` without a cipher, until it is unmounted.
///
/// # Errors
/// When the system refuses to mount, or the mount's loop fails.
pub fn serve_bare_mount(lower: &Path, at: &Path, threads: u16) -> Result<()> {
    let config = MountConfig { threads: threads.into(), ..MountConfig::default() };
    let lower = LowerFolder::open(lower)
        .map_err(|e| Error::new(ErrorKind::Io, "the lower folder cannot be opened").with_source(e))?;
    Mount::new(lower, at, None, &config)?.run()
}
