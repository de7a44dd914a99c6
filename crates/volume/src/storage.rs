//! Where headers are read from and written to: a file or block device, a device that is neither, or
//! bytes in memory.

pub(crate) mod bytes;
pub(crate) mod kept_lock;
#[cfg(test)]
pub(crate) mod recorder;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::lock::{HeaderLock, LockTo, PATIENCE};
use crate::{Error, ErrorKind, Result};

/// Bytes that a header parser reads: a [`File`] (also a block device), or a slice.
pub trait ReadAt {
    /// The size in bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, else whatever the system says.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Waits for the header's lock, which all operations on headers take by themselves; none where
    /// there is nothing to lock.
    ///
    /// # Errors
    /// `Busy` when somebody else keeps it, or it cannot be taken to change the header.
    fn lock(&self, to: LockTo) -> Result<Option<HeaderLock<'_>>> {
        self.lock_within(to, PATIENCE)
    }

    /// As [`ReadAt::lock`], but waits no longer than `patience`.
    ///
    /// # Errors
    /// As [`ReadAt::lock`].
    fn lock_within(&self, _to: LockTo, _patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        Ok(None)
    }
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        // The end of a block device is found by seeking only.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    fn lock_within(&self, to: LockTo, patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        HeaderLock::take(self, to, patience)
    }
}

impl ReadAt for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(from..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Reads `len` bytes at `offset`. The caller has bounded `len`.
pub(crate) fn read(from: &(impl ReadAt + ?Sized), offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    read_into(from, offset, &mut bytes)?;
    Ok(bytes)
}

pub(crate) fn read_into(from: &(impl ReadAt + ?Sized), offset: u64, bytes: &mut [u8]) -> Result<()> {
    from.read_exact_at(bytes, offset).map_err(|e| {
        let kind = if e.kind() == io::ErrorKind::UnexpectedEof { ErrorKind::TooSmall } else { ErrorKind::Io };
        Error::new(kind, format!("cannot read {} bytes at byte {offset}", bytes.len())).with_source(e)
    })
}

pub(crate) fn size(of: &(impl ReadAt + ?Sized)) -> Result<u64> {
    of.size().map_err(|e| Error::new(ErrorKind::Io, "cannot find out the size").with_source(e))
}

/// What headers are written to: a [`File`], a device that is no file, or in tests a recorder of the
/// order of writes.
pub trait Target: ReadAt {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Whatever the system says.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when everything written is on disk.
    ///
    /// # Errors
    /// Whatever the system says.
    fn sync_all(&self) -> io::Result<()>;

    /// Makes the file this long.
    ///
    /// # Errors
    /// Whatever the system says; `Unsupported` where the size is fixed.
    fn set_len(&self, size: u64) -> io::Result<()>;
}

impl Target for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        File::set_len(self, size)
    }
}

pub(crate) fn write(to: &(impl Target + ?Sized), offset: u64, bytes: &[u8]) -> Result<()> {
    to.write_all_at(bytes, offset).map_err(|e| {
        Error::new(ErrorKind::Io, format!("cannot write {} bytes at byte {offset}", bytes.len()))
            .with_source(e)
    })
}

pub(crate) fn sync(target: &(impl Target + ?Sized)) -> Result<()> {
    target.sync_all().map_err(|e| Error::new(ErrorKind::Io, "cannot sync").with_source(e))
}

/// Overwrites a range with random bytes.
pub(crate) fn scrub(target: &(impl Target + ?Sized), Range { start, end }: Range<u64>) -> Result<()> {
    let mut noise = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(noise.len());
        crate::random::fill(&mut noise[..left])?;
        write(target, at, &noise[..left])?;
        at += left as u64;
    }
    Ok(())
}
