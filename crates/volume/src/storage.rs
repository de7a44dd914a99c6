//! Access to headers: in a file or block device, in another kind of device, or in memory.

pub(crate) mod bytes;
#[cfg(test)]
pub(crate) mod failed_syncs;
pub(crate) mod kept_lock;
pub(crate) mod named_file;
pub(crate) mod new_file;
#[cfg(test)]
pub(crate) mod recorder;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use underseal_cipher::{CipherSpec, SectorSize, build};

use crate::lock::{HeaderLock, LockTo, PATIENCE};
use crate::{Error, ErrorKind, Result};

/// Bytes that a header parser reads: a [`File`] (also a block device), or a slice.
pub trait ReadAt {
    /// Returns the size in bytes.
    ///
    /// # Errors
    /// The error of the system.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end; otherwise the error of the system.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Lets go of cached bytes of a range, so that the next read shows what the disk has. A cache
    /// may show more: bytes whose write failed, or older ones, where another device node leads to
    /// the same disk (a partition, or the file of a loop device). Bytes that are not written yet
    /// stay cached, and so does everything where the cache cannot be told.
    fn forget_cached(&self, _range: Range<u64>) {}

    /// Waits for the header's lock, which all operations on headers take themselves. Returns `None`
    /// when there is nothing to lock.
    ///
    /// # Errors
    /// `Busy` when another process keeps it, or when it cannot be taken to change the header.
    fn lock(&self, to: LockTo) -> Result<Option<HeaderLock<'_>>> {
        self.lock_within(to, PATIENCE)
    }

    /// Like [`ReadAt::lock`], but waits no longer than `patience`.
    ///
    /// # Errors
    /// The kinds of [`ReadAt::lock`].
    fn lock_within(&self, _to: LockTo, _patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        Ok(None)
    }
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        // The size of a block device can be found only by a seek.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        /// The largest unit that Linux keeps or lets go of as a whole.
        const FOLIO: u64 = 2 << 20;
        let start = range.start / FOLIO * FOLIO;
        let len = range.end.checked_next_multiple_of(FOLIO).unwrap_or(range.end).saturating_sub(start);
        let _ = fadvise(self, start, NonZeroU64::new(len), Advice::DontNeed);
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

/// Reads `len` bytes at `offset`. The caller has limited `len`.
pub(crate) fn read(from: &(impl ReadAt + ?Sized), offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    read_into(from, offset, &mut bytes)?;
    Ok(bytes)
}

pub(crate) fn read_into(from: &(impl ReadAt + ?Sized), offset: u64, bytes: &mut [u8]) -> Result<()> {
    from.forget_cached(offset..offset.saturating_add(bytes.len() as u64));
    from.read_exact_at(bytes, offset).map_err(|e| {
        let kind = if e.kind() == io::ErrorKind::UnexpectedEof { ErrorKind::TooSmall } else { ErrorKind::Io };
        Error::new(kind, format!("cannot read {} bytes at byte {offset}", bytes.len())).with_source(e)
    })
}

pub(crate) fn size(of: &(impl ReadAt + ?Sized)) -> Result<u64> {
    of.size().map_err(|e| Error::new(ErrorKind::Io, "cannot find out the size").with_source(e))
}

/// The target of header writes: a [`File`], a device that is no file, or in tests a recorder of the
/// order of writes.
pub trait Target: ReadAt {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The error of the system.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when all writes are on disk.
    ///
    /// # Errors
    /// The error of the system.
    fn sync_all(&self) -> io::Result<()>;

    /// Changes the file's length.
    ///
    /// # Errors
    /// The error of the system; `Unsupported` when the size is fixed.
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

/// Writes bytes again as they are read, and syncs. After a sync that failed Linux takes the pages
/// for clean: reads show the new bytes, the disk has the old ones, and later syncs succeed. Sectors
/// that the disk has already cannot be torn by this.
pub(crate) fn secure(on: &(impl Target + ?Sized), Range { start, end }: Range<u64>) -> Result<()> {
    let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
    write(on, start, &read(on, start, len)?)?;
    sync(on)
}

/// As [`secure`], of a keyslot's key material. Material beyond the end, or that cannot be read, is
/// left: the other keyslots open the volume.
pub(crate) fn secure_material(on: &(impl Target + ?Sized), range: Range<u64>) -> Result<()> {
    let end = size(on)?;
    let (start, end) = (range.start.min(end), range.end.min(end));
    match read(on, start, usize::try_from(end - start).unwrap_or(usize::MAX)) {
        Ok(bytes) => write(on, start, &bytes).and_then(|()| sync(on)),
        Err(e) if e.kind() == ErrorKind::Io => Ok(()),
        Err(e) => Err(e),
    }
}

/// Overwrites a range with bytes like random ones: a buffer that is encrypted again and again by a
/// key that is forgotten. The kernel's random bytes take ten times as long.
pub(crate) fn scrub(target: &(impl Target + ?Sized), Range { start, end }: Range<u64>) -> Result<()> {
    let failed = |e| Error::new(ErrorKind::Memory, "no cipher to make random bytes").with_source(e);
    let spec = "aes-xts-plain64".parse::<CipherSpec>().map_err(failed)?;
    let cipher = build(&spec, &crate::random::key(64)?, SectorSize::S512).map_err(failed)?;
    let sector = SectorSize::S512.bytes();
    let mut noise = vec![0; 1 << 20];
    let (mut at, mut sectors) = (start, 0);
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(noise.len());
        let whole = &mut noise[..left.next_multiple_of(sector)];
        sectors += (whole.len() / sector) as u64;
        cipher.encrypt(sectors, (&mut *whole).into());
        write(target, at, &whole[..left])?;
        at += left as u64;
    }
    Ok(())
}
