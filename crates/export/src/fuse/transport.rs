//! How requests come from the kernel: through io_uring where both sides can, else through /dev/fuse.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use underseal_device::Ring;

/// How requests come from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FuseTransport {
    /// Through an io_uring of each thread.
    IoUring,
    /// Through /dev/fuse, and why not through io_uring.
    Device(String),
}

impl fmt::Display for FuseTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring => f.write_str("through io_uring"),
            Self::Device(why) => write!(f, "through /dev/fuse: {why}"),
        }
    }
}

/// The module's setting.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// How many queues the kernel will have where this process can serve them through io_uring.
///
/// # Errors
/// Why it cannot.
pub(super) fn queues(wanted: bool) -> Result<u16, String> {
    if !wanted {
        return Err("io_uring is off for this mount".into());
    }
    let queues =
        underseal_fuse::queues().map_err(|e| format!("the system does not tell its processors: {e}"))?;
    // A ring that the mount's threads will need, before the kernel waits for them.
    Ring::with_long_commands(1)
        .map_err(|e| format!("the kernel gives this process no such io_uring: {e}"))?;
    Ok(queues)
}

/// Why the kernel does not offer it.
pub(super) fn not_offered() -> String {
    match Path::new(SETTING).exists() {
        true => "the kernel's setting fuse.enable_uring is off".into(),
        false => "this kernel has no FUSE over io_uring (Linux 6.14 has)".into(),
    }
}
