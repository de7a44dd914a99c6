//! How requests come from the kernel: through io_uring where both sides can, else through
//! /dev/fuse.

use std::fmt;

use serde::{Deserialize, Serialize};

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
