//! The crate's one error: a stable kind, what was done where, and its cause.

use std::fmt;
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

/// An error of a lower device.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<io::Error>,
}

impl Error {
    /// What went wrong, where.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// Adds what the system said.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The stable kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The system's error number, where the system gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s as _)
    }
}
