//! Whole extents of a lower file, read and decrypted: for a mount and for the tools.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::open::read_most;
use super::{EXTENT_BYTES, FsError};
use crate::{EXTENT, Error, ErrorKind};

/// Why extents are not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The lower file cannot be read.
    Lower(Errno),
    /// The lower file ends before this extent does.
    Cut(u64),
    /// This extent is all zeros.
    Missing(u64),
}

/// The number of extents that are read and decrypted at a time: the second-level cache still has
/// the bytes that were read.
const CACHED: usize = 32;

/// Reads extents from `at` on, beginning with the extent `first`, and decrypts them. A missing
/// extent is an error, or zeros unless `strict`.
pub(crate) fn read(
    fd: BorrowedFd<'_>,
    at: u64,
    first: u64,
    run: &mut [u8],
    strict: bool,
    decrypt: impl Fn(u64, &mut [u8]),
) -> Result<(), Unread> {
    for (n, piece) in (0..).step_by(CACHED).zip(run.chunks_mut(CACHED * EXTENT)) {
        let first = first + n;
        let got = read_most(fd, piece, at + n * EXTENT_BYTES).map_err(Unread::Lower)?;
        let whole = got / EXTENT * EXTENT;
        if strict && whole < piece.len() {
            return Err(Unread::Cut(first + (whole / EXTENT) as u64));
        }
        piece[whole..].fill(0);
        match piece.chunks_exact(EXTENT).position(is_missing) {
            None => decrypt(first, piece),
            Some(n) if strict => return Err(Unread::Missing(first + n as u64)),
            Some(_) => {
                let extents = (first..).zip(piece.chunks_exact_mut(EXTENT));
                extents.filter(|(_, extent)| !is_missing(extent)).for_each(|(n, extent)| decrypt(n, extent));
            }
        }
    }
    Ok(())
}

/// Returns true for a missing extent: ciphertext is never all zeros, so all zeros are a hole, or
/// blocks that were never written before a power cut.
pub(crate) fn is_missing(extent: &[u8]) -> bool {
    // The first bytes decide for nearly every extent.
    extent[..8] == [0; 8] && extent.iter().all(|&b| b == 0)
}

impl From<Unread> for FsError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Lower(e) => e.into(),
            other => Error::from(other).into(),
        }
    }
}

impl From<Unread> for Error {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Lower(e) => {
                Self::new(ErrorKind::Io, "cannot be read").with_source(std::io::Error::from(e))
            }
            Unread::Cut(extent) => {
                Self::new(ErrorKind::Cut, format!("the file is cut off at extent {extent}"))
            }
            Unread::Missing(extent) => Self::new(ErrorKind::Missing, format!("extent {extent} is missing")),
        }
    }
}
