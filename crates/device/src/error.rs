//! The crate's one error: a stable kind, what was done where, and its cause.

use std::io;

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device could not be opened.
    Open,
    /// Somebody else uses the device in a way that excludes this one.
    Locked,
    /// Whether somebody else uses the device cannot be known: its file system has no locks.
    NoLock,
    /// The device's alignment does not suit what lies on it.
    Alignment,
    /// A read failed or came back short.
    Read,
    /// A write failed.
    Write,
    /// A flush failed: acknowledged writes may be lost.
    Flush,
    /// A discard, a zeroing or a prefetch failed.
    Other,
    /// The kernel refuses an io_uring to this process.
    Ring,
    /// Memory could not be had.
    Memory,
}

underseal_error::error_type! {
    /// An error of a lower device.
    pub struct Error(ErrorKind) from io::Error;
}

impl Error {
    /// The system's error number, where the system gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref()?.downcast_ref().and_then(io::Error::raw_os_error)
    }
}
