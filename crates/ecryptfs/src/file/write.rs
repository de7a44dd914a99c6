//! Writing: one crypto call and one lower write for a whole request, encrypted in the request's
//! memory if possible.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::open::{EncryptedFile, FileState, WritableState, append_most, write_most, write_size};
use super::whole::OldExtents;
use super::{EXTENT_BYTES, FsError, IsOver, OpenFile, around, to_usize};
use crate::{EXTENT, HeaderLocation};

impl OpenFile {
    /// Writes the first `len` bytes of `data`, and destroys them; `data` must have another extent
    /// behind them. `scratch` has room for the request and two more extents. Returns the number of
    /// bytes written, which is smaller when the lower filesystem is full and `short` allows it.
    ///
    /// Fails with the lower file's error, with `EINTR` when the caller no longer waits, and with
    /// `ESTALE` when a write that appends is not at the end.
    pub(crate) fn write(
        &self,
        place: WritePlace,
        len: usize,
        data: &mut [u8],
        scratch: &mut [u8],
        short: ShortWrite,
        is_over: IsOver<'_>,
    ) -> Result<usize, FsError> {
        if len == 0 {
            return Ok(0);
        }
        // Only a file without a header, or an encrypted file, needs a writer's lock: for plain
        // files the lower filesystem has its own.
        if matches!(*self.reading(), FileState::Plain) {
            return short.answer(match place {
                WritePlace::At(offset) | WritePlace::AtEnd(offset) => {
                    write_most(self.as_fd(), &data[..len], offset)
                }
                WritePlace::End(_) => append_most(self.as_fd(), &data[..len]),
            });
        }
        let (WritePlace::At(offset) | WritePlace::AtEnd(offset) | WritePlace::End(offset)) = place;
        let grows = matches!(place, WritePlace::At(_)) && self.grows_far(offset);
        let _busy = grows.then(|| self.busy());
        let mut state = self.writing_from(place, is_over)?;
        let FileState::Sealed(sealed) = &mut *state else { return Err(Errno::ROFS.into()) };
        let offset = match place {
            WritePlace::At(offset) => offset,
            WritePlace::AtEnd(offset) if offset == sealed.size() => offset,
            WritePlace::AtEnd(_) => return Err(Errno::STALE.into()),
            WritePlace::End(_) => sealed.size(),
        };
        let end = offset.checked_add(len as u64).ok_or(Errno::FBIG)?;
        let size = sealed.size();
        let skip = to_usize(offset % EXTENT_BYTES);
        let (first, last) = around(offset, end);
        let run_len = to_usize((last - first) * EXTENT_BYTES);
        let rest = skip + len;
        let mut old = OldExtents::default();
        let run = if skip == 0 && (rest == run_len || end >= size) {
            data[rest..run_len].fill(0);
            &mut data[..run_len]
        } else {
            let run = &mut scratch[..run_len];
            if skip > 0 {
                self.read_for_patch(sealed, first, size, &mut run[..EXTENT])?;
                old.keep(first, &run[..EXTENT]);
            }
            if rest < run_len {
                let only = skip > 0 && run_len == EXTENT;
                if !only {
                    let run = &mut run[run_len - EXTENT..];
                    self.read_for_patch(sealed, last - 1, size, run)?;
                    old.keep(last - 1, run);
                }
            }
            run[skip..rest].copy_from_slice(&data[..len]);
            run
        };
        self.encrypt(sealed, first, run);
        let (written, failed) = self.write_extents(sealed, first, run, &old)?;
        let whole = if failed.is_some() { written.saturating_sub(skip).min(len) } else { len };
        let reached = offset + whole as u64;
        if whole > 0 && reached > size {
            self.set_size(sealed, reached)?;
        }
        short.answer((whole, failed))
    }

    /// Locks the file for a write, and lets it grow up to the place of the write before.
    fn writing_from(&self, place: WritePlace, is_over: IsOver<'_>) -> Result<WritableState<'_>, FsError> {
        loop {
            let state = self.writing()?;
            match (place, &*state) {
                (WritePlace::At(offset), FileState::Sealed(sealed)) if offset > sealed.size() => {
                    drop(state);
                    self.grow(offset, is_over)?;
                }
                _ => return Ok(state),
            }
        }
    }

    /// Reads an extent before a part of it is written: zeros behind the file's end.
    pub(super) fn read_for_patch(
        &self,
        sealed: &EncryptedFile,
        extent: u64,
        size: u64,
        into: &mut [u8],
    ) -> Result<(), FsError> {
        let start = extent * EXTENT_BYTES;
        if start >= size {
            into.fill(0);
            return Ok(());
        }
        self.read_extents(sealed, extent, into)?;
        let inside = to_usize((size - start).min(EXTENT_BYTES));
        into[inside..].fill(0);
        Ok(())
    }

    /// Writes a new size into the header.
    pub(super) fn set_size(&self, sealed: &mut EncryptedFile, size: u64) -> Result<(), FsError> {
        let before = sealed.size();
        sealed.header.set_size(size);
        write_size(self.as_fd(), &sealed.header).inspect_err(|_| sealed.header.set_size(before))?;
        self.tell_size(size);
        if sealed.header.place() == HeaderLocation::Xattr {
            self.syncs().size_written();
        }
        Ok(())
    }
}

/// Where a write goes, by the offset that the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritePlace {
    At(u64),
    /// The end, as the kernel knows it. A kernel that is wrong has put the bytes into its pages at
    /// a wrong place. A plain file takes the offset.
    AtEnd(u64),
    /// The end, whatever the kernel knows.
    End(u64),
}

/// The answer to a write when the lower filesystem takes only a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortWrite {
    /// The number of bytes written: the caller writes the rest, and finds the error.
    Counted,
    /// The error: the kernel writes pages back, and takes any other answer for all of them.
    Failed,
}

impl ShortWrite {
    fn answer(self, (written, failed): (usize, Option<Errno>)) -> Result<usize, FsError> {
        match failed {
            Some(e) if written == 0 || self == Self::Failed => Err(e.into()),
            _ => Ok(written),
        }
    }
}
