//! The transport of requests from the kernel: io_uring where kernel and server support it, else
//! /dev/fuse.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The transport of requests from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FuseTransport {
    /// An io_uring of each thread.
    IoUring,
    /// /dev/fuse, with the reason why io_uring is not used.
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
