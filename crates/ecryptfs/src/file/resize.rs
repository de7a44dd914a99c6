//! Sizes: growth in encrypted zeros, as the format has no holes; cuts; reserved room.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, ftruncate, seek};
use rustix::io::Errno;

use super::open::{EncryptedFile, FileState, lower_size};
use super::whole::OldExtents;
use super::{EXTENT_BYTES, FsError, IsOver, OpenFile, RUN, around, to_usize};
use crate::{EXTENT, FileHeader, HeaderLocation, durable};

/// The number of runs that are written between two checks whether the caller still waits. A check
/// reads a file in /proc.
const PATIENCE: u64 = 8;

/// The time that other requests have for taking the lock, which is not a fair one.
const PAUSE: Duration = Duration::from_millis(1);

impl OpenFile {
    /// Cuts the file, or lets it grow in zeros.
    ///
    /// Fails with the lower file's error, and with `EINTR` when the caller no longer waits. Then
    /// the length is unchanged.
    pub(crate) fn set_len(&self, len: u64, is_over: IsOver<'_>) -> Result<(), FsError> {
        let _busy = self.busy();
        let mut state = self.writing()?;
        match &mut *state {
            FileState::Plain => Ok(ftruncate(self, len)?),
            FileState::Sealed(sealed) if len <= sealed.size() => self.cut(sealed, len),
            FileState::Sealed(_) => {
                drop(state);
                self.grow(len, is_over)
            }
            _ => Err(Errno::ROFS.into()),
        }
    }

    fn cut(&self, sealed: &mut EncryptedFile, len: u64) -> Result<(), FsError> {
        let old = sealed.size();
        let (extent, mut before) = (len / EXTENT_BYTES, OldExtents::default());
        if len < old && !len.is_multiple_of(EXTENT_BYTES) {
            // The rest of a longer file's extent is removed from the lower file, too.
            let mut run = [0; EXTENT];
            self.read_for_patch(sealed, extent, old, &mut run)?;
            before.keep(extent, &run);
            run[to_usize(len % EXTENT_BYTES)..].fill(0);
            sealed.contents.encrypt(extent, &mut run);
            self.write_all_extents(sealed, extent, &run, &before)?;
        }
        let put_back = |sealed: &EncryptedFile| {
            if !len.is_multiple_of(EXTENT_BYTES) {
                self.put_back(sealed, extent, EXTENT, &before);
            }
        };
        if len < old {
            self.set_size(sealed, len).inspect_err(|_| put_back(sealed))?;
        } else {
            // The times change even without a change of the size.
            let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let keep = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let times = rustix::fs::Timestamps { last_access: keep, last_modification: now };
            rustix::fs::futimens(self, &times)?;
        }
        let (_, last) = around(0, len);
        let lower = sealed.place_of(last)?;
        // Room reserved behind the end is released, too.
        let there = lower_size(&fstat(self)?);
        if there >= lower {
            if len < old
                && there > lower
                && sealed.header.place() == HeaderLocation::File
                && let Err(e) = self.syncs().write_back(|| write_back_header(self))
            {
                // The lower file has all its bytes still.
                self.set_size(sealed, old)?;
                put_back(sealed);
                return Err(e.into());
            }
            ftruncate(self, lower)?;
        }
        Ok(())
    }

    /// Makes an encrypted file grow to `len` bytes, in turns: each ends when another request waits.
    pub(super) fn grow(&self, len: u64, is_over: IsOver<'_>) -> Result<(), FsError> {
        let (mut zeroed, mut runs) = (None, 0);
        loop {
            let mut state = self.writing()?;
            let FileState::Sealed(sealed) = &mut *state else { return Err(Errno::ROFS.into()) };
            if sealed.size() >= len || self.grow_for_a_turn(sealed, len, (&mut zeroed, &mut runs), is_over)? {
                return Ok(());
            }
            drop(state);
            thread::sleep(PAUSE);
        }
    }

    /// Writes zeros behind the end, and the new size after the last of them. `zeroed` is where the
    /// zeros of earlier turns end, `runs` their number. Returns true when the file has grown.
    fn grow_for_a_turn(
        &self,
        sealed: &mut EncryptedFile,
        len: u64,
        (zeroed, runs): (&mut Option<u64>, &mut u64),
        is_over: IsOver<'_>,
    ) -> Result<bool, FsError> {
        let size = sealed.size();
        let before = sealed.place_of(around(0, size).1)?;
        let mut grown = || -> Result<u64, FsError> {
            let from = match *zeroed {
                None => {
                    self.reserve(before, sealed.place_of(around(0, len).1)?)?;
                    size
                }
                // The file was cut between two turns, and its zeros with it.
                Some(end) if lower_size(&fstat(self)?) < sealed.place_of(around(0, end).1)? => size,
                Some(end) => end.max(size),
            };
            self.zero_for_a_turn(sealed, from..len, runs, is_over)
        };
        let reached = grown().and_then(|reached| {
            if reached == len { self.set_size(sealed, len).map(|()| reached) } else { Ok(reached) }
        });
        let reached = reached.inspect_err(|_| {
            // Written or reserved bytes are behind the end, so they are invisible even if this
            // fails too.
            let _ = ftruncate(self, before);
        })?;
        *zeroed = Some(reached);
        Ok(reached == len)
    }

    /// Reserves room in the lower file, so that a full disk is noticed before the write.
    fn reserve(&self, from: u64, to: u64) -> Result<(), FsError> {
        if to - from > RUN as u64 {
            let reserved = fallocate(self, FallocateFlags::KEEP_SIZE, from, to - from);
            if let Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Writes zeros over a range of an encrypted file, in turns, up to the file's end.
    fn zero(&self, mut range: Range<u64>, is_over: IsOver<'_>) -> Result<(), FsError> {
        let mut runs = 0;
        loop {
            let mut state = self.writing()?;
            let FileState::Sealed(sealed) = &mut *state else { return Err(Errno::ROFS.into()) };
            range.end = range.end.min(sealed.size());
            if range.start >= range.end {
                return Ok(());
            }
            range.start = self.zero_for_a_turn(sealed, range.clone(), &mut runs, is_over)?;
            if range.start >= range.end {
                return Ok(());
            }
            drop(state);
            thread::sleep(PAUSE);
        }
    }

    /// Writes encrypted zeros over a range, which may be behind the end, or over its beginning.
    /// Returns where they end: at the range's end, or between two extents.
    fn zero_for_a_turn(
        &self,
        sealed: &EncryptedFile,
        Range { start: from, end: to }: Range<u64>,
        runs: &mut u64,
        is_over: IsOver<'_>,
    ) -> Result<u64, FsError> {
        let size = sealed.size();
        let (mut next, last) = around(from, to);
        let mut run = vec![0; RUN.min(to_usize((last - next).min(RUN as u64) * EXTENT_BYTES))];
        let first = next;
        while next < last {
            if next > first && self.is_awaited() {
                return Ok(next * EXTENT_BYTES);
            }
            *runs += 1;
            if runs.is_multiple_of(PATIENCE) && is_over() {
                return Err(Errno::INTR.into());
            }
            let count = to_usize((last - next).min((RUN / EXTENT) as u64));
            let run = &mut run[..count * EXTENT];
            run.fill(0);
            let start = next * EXTENT_BYTES;
            let end = start + run.len() as u64;
            let mut old = OldExtents::default();
            if start < from {
                self.read_for_patch(sealed, next, size, &mut run[..EXTENT])?;
                old.keep(next, &run[..EXTENT]);
                let cut = to_usize((to - start).min(EXTENT_BYTES));
                run[to_usize(from - start)..cut].fill(0);
            }
            let single = count == 1 && start < from;
            if end > to && to < size && !single {
                let at = run.len() - EXTENT;
                self.read_for_patch(sealed, next + count as u64 - 1, size, &mut run[at..])?;
                old.keep(next + count as u64 - 1, &run[at..]);
                let cut = to_usize(to - (end - EXTENT_BYTES));
                run[at..at + cut].fill(0);
            }
            self.encrypt(sealed, next, run);
            self.write_all_extents(sealed, next, run, &old)?;
            next += count as u64;
        }
        Ok(to)
    }

    /// Implements fallocate(2): reserves room, or writes zeros. An encrypted file has no holes.
    ///
    /// Fails with `EOPNOTSUPP` for holes and for moves of data, and with `EINTR` when the caller no
    /// longer waits.
    pub(crate) fn allocate(
        &self,
        offset: u64,
        len: u64,
        mode: u32,
        is_over: IsOver<'_>,
    ) -> Result<(), FsError> {
        let flags = FallocateFlags::from_bits_retain(mode);
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::FBIG)?;
        let _busy = self.busy();
        let mut state = self.writing()?;
        let sealed = match &mut *state {
            FileState::Plain => return Ok(fallocate(self, flags, offset, len)?),
            FileState::Sealed(sealed) => sealed,
            _ => return Err(Errno::ROFS.into()),
        };
        let keep = flags.contains(FallocateFlags::KEEP_SIZE);
        let size = sealed.size();
        match flags.difference(FallocateFlags::KEEP_SIZE) {
            // Each byte inside already has its place.
            f if f.is_empty() && keep => {
                let at = sealed.place_of(size.div_ceil(EXTENT_BYTES))?;
                let to = sealed.place_of(end.div_ceil(EXTENT_BYTES))?;
                match fallocate(self, FallocateFlags::KEEP_SIZE, at, to.saturating_sub(at).max(1)) {
                    _ if to <= at => Ok(()),
                    other => Ok(other?),
                }
            }
            f if f.is_empty() => {
                drop(state);
                self.grow(end, is_over)
            }
            FallocateFlags::ZERO_RANGE => {
                drop(state);
                // First what may find a full disk: the kernel keeps its pages after an error.
                if !keep {
                    self.grow(end, is_over)?;
                }
                self.zero(offset..end.min(size), is_over)
            }
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Implements SEEK_DATA and SEEK_HOLE: an encrypted file is data up to its end.
    ///
    /// Fails with `ENXIO` behind the end.
    pub(crate) fn seek(&self, offset: u64, hole: bool) -> Result<u64, FsError> {
        let size = match &*self.reading() {
            FileState::Plain => {
                let to = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                return Ok(seek(self, to)?);
            }
            FileState::Unborn => 0,
            FileState::Sealed(sealed) => sealed.size(),
            FileState::Shown { len, .. } => *len,
        };
        match (offset < size, hole) {
            (false, _) => Err(Errno::NXIO.into()),
            (true, true) => Ok(size),
            (true, false) => Ok(offset),
        }
    }
}

/// Writes the header's pages back and waits for the disk, so that no journal has the cut before the
/// disk has the size. The size is data, which stays in memory for half a minute; a cut is metadata,
/// which is committed within seconds. A commit flushes the disk's own cache, so no flush is needed
/// here. A size in an xattr is in the journal itself, before the cut. A filesystem on another one
/// may have no pages of the file: there the file is synced.
#[expect(unsafe_code, reason = "sync_file_range(2), which rustix does not have")]
fn write_back_header(fd: impl AsFd) -> Result<(), Errno> {
    if !durable::is_on_own_disk(&fd) {
        return rustix::fs::fdatasync(fd);
    }
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let len = FileHeader::IN_FILE as i64;
    // SAFETY: the descriptor is open, and the call accesses no memory.
    match unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), 0, len, flags) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(e @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) => Err(e),
            // A filesystem or a sandbox without the call.
            _ => rustix::fs::fdatasync(fd),
        },
    }
}
