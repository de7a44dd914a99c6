//! A folder mounted unchanged: the cost of FUSE alone, by the code that serves eCryptfs.

use std::path::Path;

use underseal_ecryptfs::Result;
use underseal_ecryptfs::fs::{Mount, MountConfig};

/// Mounts `lower` at `at` without a cipher, until it is unmounted.
///
/// # Errors
/// When the system refuses to mount, or the mount's loop fails.
pub fn serve_bare_mount(lower: &Path, at: &Path, threads: u16) -> Result<()> {
    let config = MountConfig { threads: threads.into(), ..MountConfig::default() };
    Mount::new(lower, at, None, &config)?.run()
}
