//! The crate's error: a stable kind, the operation with its place, and the cause.

use std::fmt;
use std::io;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device could not be opened.
    Open,
    /// Another program uses the device in an incompatible way.
    Locked,
    /// The filesystem has no locks, so other users of the device cannot be detected.
    NoLock,
    /// The device's alignment does not fit the data on it.
    Alignment,
    /// A read failed or was short.
    Read,
    /// A write failed.
    Write,
    /// A flush failed: acknowledged writes may be lost.
    Flush,
    /// A discard, a zeroing or a prefetch failed.
    Other,
    /// The kernel refuses an io_uring to this process.
    Ring,
    /// The system has no memory.
    Memory,
}

underseal_error::error_type! {
    /// An error of a lower device.
    pub struct Error(ErrorKind) from io::Error;
}

impl Error {
    /// The error of a read at byte `offset` that found a block whose tag does not match; the block
    /// begins at `at`.
    pub fn mismatch(offset: u64, at: u64) -> Self {
        Self::new(ErrorKind::Read, format!("read at byte {offset}"))
            .with_source(io::Error::other(Mismatch(at)))
    }

    /// The first byte of the first block whose tag does not match, where the device reports it.
    pub fn mismatch_at(&self) -> Option<u64> {
        Some(self.system()?.get_ref()?.downcast_ref::<Mismatch>()?.0)
    }

    /// The system's error number, if there is one for this error.
    pub fn errno(&self) -> Option<i32> {
        let mismatch = || self.mismatch_at().map(|_| rustix::io::Errno::ILSEQ.raw_os_error());
        self.system()?.raw_os_error().or_else(mismatch)
    }

    fn system(&self) -> Option<&io::Error> {
        self.source.as_ref()?.downcast_ref()
    }
}

/// The first byte of a block whose tag does not match.
#[derive(Debug)]
struct Mismatch(u64);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tag of the block at byte {} is wrong", self.0)
    }
}

impl std::error::Error for Mismatch {}
