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

underseal_error::error_type! {
    /// An error of a lower device.
    pub struct Error(ErrorKind) from io::Error;
}

impl Error {
    /// A read at byte `offset` that found a block which is not as it was written, by its tag; `at`
    /// is where that begins.
    pub fn mismatch(offset: u64, at: u64) -> Self {
        Self::new(ErrorKind::Read, format!("read at byte {offset}"))
            .with_source(io::Error::other(Mismatch(at)))
    }

    /// Where the first block begins that is not as it was written, where the device tells that.
    pub fn mismatch_at(&self) -> Option<u64> {
        Some(self.system()?.get_ref()?.downcast_ref::<Mismatch>()?.0)
    }

    /// The system's error number, where the system gave one or has one for it.
    pub fn errno(&self) -> Option<i32> {
        let mismatch = || self.mismatch_at().map(|_| rustix::io::Errno::ILSEQ.raw_os_error());
        self.system()?.raw_os_error().or_else(mismatch)
    }

    fn system(&self) -> Option<&io::Error> {
        self.source.as_ref()?.downcast_ref()
    }
}

/// A block whose tag is another: where it begins on the device.
#[derive(Debug)]
struct Mismatch(u64);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tag of the block at byte {} is wrong", self.0)
    }
}

impl std::error::Error for Mismatch {}
