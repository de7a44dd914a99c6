//! An open lower file, and its kind.

mod again;
mod calls;
mod writable;

pub(super) use calls::CountedCall;
pub(super) use writable::WritableState;

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, Stat, XattrFlags, fchmod, fgetxattr, fsetxattr, fstat, openat,
};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2};

use super::blank::is_blank;
use super::sync::Syncs;
use super::version::{FileVersion, OwnVersion};
use super::{FsError, LowerView, Sealing};
use crate::lock::{self, LockMode};
use crate::{Contents, ErrorKind, FileHeader, HeaderLocation, XATTR};

/// A lower file, shared by all of its opens through this mount.
pub(crate) struct OpenFile {
    first: OwnedFd,
    /// The descriptor for writing, if the first was opened only for reading.
    writer: OnceLock<OwnedFd>,
    /// The number of opens for writing.
    writers: Mutex<u64>,
    /// True when the lock of a reader is to be taken yet.
    lacks_lock: AtomicBool,
    view: Arc<LowerView>,
    /// Readers share the file; a writer has it alone.
    state: RwLock<FileState>,
    /// The size for callers that do not wait for a writer; [`LOWER`] stands for the lower file's
    /// own size.
    told: AtomicU64,
    /// The number of long calls that keep others from the file's bytes.
    busy: AtomicU64,
    /// The number of calls that wait for the state.
    waiting: AtomicU64,
    syncs: Syncs,
    own_version: OwnVersion,
    /// The last field: when it is dropped, the descriptors are closed and their lock is free.
    closing: Arc<Closing>,
}

/// No known size.
const LOWER: u64 = u64::MAX;

/// Exists while a file without opens is being closed.
pub(crate) struct Closing;

/// The kind of a file.
pub(super) enum FileState {
    /// A plain file: the lower file itself.
    Plain,
    /// An empty lower file of an encrypted mount: an empty file without a header.
    Unborn,
    /// Encrypted.
    Sealed(EncryptedFile),
    /// The encrypted file itself, with its header shown in front, although the lower file does not
    /// begin with the header.
    Shown { header: Vec<u8>, len: u64 },
}

/// An encrypted file.
pub(super) struct EncryptedFile {
    pub(super) header: FileHeader,
    pub(super) contents: Contents,
}

impl EncryptedFile {
    pub(super) fn size(&self) -> u64 {
        self.header.size()
    }

    /// Returns the place of an extent in the lower file.
    pub(super) fn place_of(&self, extent: u64) -> Result<u64, FsError> {
        let offset =
            extent.checked_mul(super::EXTENT_BYTES).and_then(|at| at.checked_add(self.header.data_offset()));
        offset.filter(|&offset| i64::try_from(offset).is_ok()).ok_or(FsError::from(Errno::FBIG))
    }
}

/// A lower file's descriptor, for any purpose.
pub(crate) enum LowerDescriptor {
    /// A descriptor for the name and attributes only.
    Path(Arc<OwnedFd>),
    /// The descriptor of an open file.
    File(Arc<OpenFile>),
}

impl AsFd for LowerDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Path(fd) => fd.as_fd(),
            Self::File(file) => file.as_fd(),
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.get().unwrap_or(&self.first).as_fd()
    }
}

impl OpenFile {
    /// Opens the lower file at `path`. `before` belongs to the previous open through this mount.
    ///
    /// Fails with `EIO` when it is not encrypted, damaged, or no available key opens it, and with
    /// `EBUSY` when another mount or a tool uses it.
    pub(crate) fn open(
        view: &Arc<LowerView>,
        path: &str,
        write: bool,
        before: &Weak<Closing>,
    ) -> Result<Self, FsError> {
        if write && view.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let first = open_lower(path, write)?;
        take(&first, write, before)?;
        let state = FileState::of(view, first.as_fd())?;
        Ok(Self::new(view, first, state, write))
    }

    /// Converts a newly created lower file to an empty file of the mount, open for writing.
    ///
    /// Fails when its header cannot be written.
    pub(crate) fn create(view: &Arc<LowerView>, fd: OwnedFd) -> Result<Self, FsError> {
        take(&fd, true, &Weak::new())?;
        let state = match &view.sealing {
            Some(sealing) => FileState::Sealed(born(sealing, fd.as_fd())?),
            None => FileState::Plain,
        };
        let version = FileVersion::of(&fstat(&fd)?);
        let file = Self::new(view, fd, state, true);
        file.starts_from(version);
        Ok(file)
    }

    fn new(view: &Arc<LowerView>, first: OwnedFd, state: FileState, write: bool) -> Self {
        let syncs = Syncs::default();
        match &state {
            // Plain files need no lock of this mount: other users protect their changes themselves.
            FileState::Plain => lock::unlock(&first),
            // The size may not be durable.
            FileState::Sealed(sealed) if sealed.header.place() == HeaderLocation::Xattr => {
                syncs.size_written()
            }
            _ => {}
        }
        Self {
            first,
            writer: OnceLock::new(),
            writers: Mutex::new(write.into()),
            lacks_lock: AtomicBool::new(false),
            view: view.clone(),
            told: AtomicU64::new(state.size()),
            busy: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            state: RwLock::new(state),
            syncs,
            own_version: OwnVersion::default(),
            closing: Arc::new(Closing),
        }
    }

    /// Says when this file is closed, to whom opens it next.
    pub(crate) fn closing(&self) -> Weak<Closing> {
        Arc::downgrade(&self.closing)
    }

    /// Returns the size of the plain file of this lower file. The call does not wait for a file
    /// that is growing.
    pub(crate) fn size(&self, lower: &Stat) -> u64 {
        match self.told.load(Relaxed) {
            LOWER => lower_size(lower),
            size => size,
        }
    }

    /// Returns the size with the lower file's present attributes, or `None` during a change.
    pub(crate) fn settled_size(&self) -> Option<(Stat, u64)> {
        let _still = self.state.try_read().ok()?;
        let stat = fstat(self).ok()?;
        Some((stat, self.size(&stat)))
    }

    /// Returns true when the lower file is passed through, so that it may change at any time.
    pub(crate) fn is_plain(&self) -> bool {
        self.told.load(Relaxed) == LOWER
    }

    /// Returns true when reads and writes may have to wait for long.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }

    /// Returns true when a write at this offset makes the file grow in zeros before it, by more
    /// than one run.
    pub(crate) fn grows_far(&self, offset: u64) -> bool {
        match self.told.load(Relaxed) {
            LOWER => false,
            size => offset.saturating_sub(size) > super::RUN as u64,
        }
    }

    /// Marks the file as busy until the guard is dropped.
    pub(super) fn busy(&self) -> CountedCall<'_> {
        CountedCall::counted_in(&self.busy)
    }

    pub(super) fn tell_size(&self, size: u64) {
        self.told.store(size, Relaxed);
    }

    /// Removes the mode bits that a file must lose when another user changes it.
    ///
    /// Fails with the lower file's error.
    pub(crate) fn kill_suid(&self) -> Result<(), Errno> {
        let mode = fstat(self)?.st_mode;
        // The group's bit has another meaning when the group may not execute.
        let gone = if mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
        if mode & gone != 0 && FileType::from_raw_mode(mode) == FileType::RegularFile {
            let _change = self.change();
            fchmod(self, Mode::from_raw_mode(mode & 0o7777 & !gone))?;
        }
        Ok(())
    }

    pub(super) fn view(&self) -> &LowerView {
        &self.view
    }

    pub(super) fn own_version(&self) -> &OwnVersion {
        &self.own_version
    }

    pub(super) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    pub(super) fn encrypt(&self, sealed: &EncryptedFile, first: u64, run: &mut [u8]) {
        match &self.view.sealing {
            Some(sealing) => sealing.crypto.encrypt(&sealed.contents, first, run),
            None => sealed.contents.encrypt(first, run),
        }
    }

    pub(super) fn decrypt(&self, sealed: &EncryptedFile, first: u64, run: &mut [u8]) {
        match &self.view.sealing {
            Some(sealing) => sealing.crypto.decrypt(&sealed.contents, first, run),
            None => sealed.contents.decrypt(first, run),
        }
    }
}

/// Locks a lower file; a writer locks it alone.
fn take(fd: impl AsFd, write: bool, before: &Weak<Closing>) -> Result<(), FsError> {
    let access = if write { LockMode::Alone } else { LockMode::Shared };
    loop {
        // Read before the lock: a file closed in between no longer holds it.
        let closing = before.strong_count() > 0;
        match lock::lock(&fd, access) {
            // Another thread is about to close it.
            Err(Errno::WOULDBLOCK) if closing => std::thread::yield_now(),
            Err(Errno::WOULDBLOCK) => return Err(FsError::busy(lock::busy(&fd))),
            done => return Ok(done?),
        }
    }
}

/// Opens through a descriptor's link in /proc, which always leads to the same file.
fn open_lower(path: &str, write: bool) -> Result<OwnedFd, Errno> {
    // Parts of extents are read before they are written.
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    openat(CWD, path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Writes a header to an empty lower file.
fn born(sealing: &Sealing, fd: BorrowedFd<'_>) -> Result<EncryptedFile, FsError> {
    let (key, header) = sealing.new_file()?;
    match header.place() {
        HeaderLocation::File => write_all(fd, &header.to_file(), 0)?,
        HeaderLocation::Xattr => {
            fsetxattr(fd, XATTR, &header.to_xattr(), XattrFlags::empty()).map_err(no_xattr)?
        }
    }
    Ok(EncryptedFile { contents: key.contents()?, header })
}

/// Writes the size into a header at its place.
pub(super) fn write_size(fd: BorrowedFd<'_>, header: &FileHeader) -> Result<(), FsError> {
    match header.place() {
        HeaderLocation::File => write_all(fd, &header.size_field(), 0),
        HeaderLocation::Xattr => write_size_to_xattr(fd, header),
    }
}

/// An xattr is written as a whole. Its other contents stay: a program that ignores locks may have
/// changed the keys.
fn write_size_to_xattr(fd: BorrowedFd<'_>, header: &FileHeader) -> Result<(), FsError> {
    let mut bytes = [0; 2 * FileHeader::PARSED];
    let found = match fgetxattr(fd, XATTR, &mut bytes[..]) {
        Ok(len) => bytes.get_mut(..len),
        Err(_) => None,
    };
    let whole;
    let new = match found {
        Some(found) if FileHeader::is_marked(found) => {
            found[..8].copy_from_slice(&header.size_field());
            &*found
        }
        _ => {
            whole = header.to_xattr();
            &whole
        }
    };
    fsetxattr(fd, XATTR, new, XattrFlags::empty()).map_err(no_xattr)
}

fn no_xattr(e: Errno) -> FsError {
    match e {
        Errno::OPNOTSUPP => {
            FsError::unreadable("the lower filesystem has no xattrs for ecryptfs_xattr_metadata")
        }
        other => other.into(),
    }
}

/// Writes all of the data, or returns an error.
pub(super) fn write_all(fd: BorrowedFd<'_>, data: &[u8], at: u64) -> Result<(), FsError> {
    match write_most(fd, data, at) {
        (len, _) if len == data.len() => Ok(()),
        (_, e) => Err(e.unwrap_or(Errno::IO).into()),
    }
}

/// Writes as much as possible.
pub(super) fn write_most(fd: BorrowedFd<'_>, data: &[u8], at: u64) -> (usize, Option<Errno>) {
    let mut done = 0;
    while done < data.len() {
        match pwrite(fd, &data[done..], at + done as u64) {
            Ok(0) => return (done, Some(Errno::IO)),
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(e) => return (done, Some(e)),
        }
    }
    (done, None)
}

/// Writes as much as possible behind the end that the lower file has at each write.
pub(super) fn append_most(fd: BorrowedFd<'_>, data: &[u8]) -> (usize, Option<Errno>) {
    let mut done = 0;
    while done < data.len() {
        match pwritev2(fd, &[IoSlice::new(&data[done..])], 0, ReadWriteFlags::APPEND) {
            Ok(0) => return (done, Some(Errno::IO)),
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(e) => return (done, Some(e)),
        }
    }
    (done, None)
}

/// Reads as much as possible.
pub(super) fn read_most(fd: BorrowedFd<'_>, data: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match pread(fd, &mut data[done..], at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

impl FileState {
    /// Returns the size for callers, or [`LOWER`].
    fn size(&self) -> u64 {
        match self {
            Self::Plain => LOWER,
            Self::Unborn => 0,
            Self::Sealed(sealed) => sealed.size(),
            Self::Shown { len, .. } => *len,
        }
    }

    fn of(view: &LowerView, fd: BorrowedFd<'_>) -> Result<Self, FsError> {
        let Some(sealing) = &view.sealing else { return Ok(Self::Plain) };
        let header = match header_of(sealing, fd) {
            Ok(Some(header)) => header,
            // The kernel leaves empty files plain under passthrough.
            Ok(None) if sealing.passthrough || sealing.encrypted_view => return Ok(Self::Plain),
            Ok(None) => return Ok(Self::Unborn),
            Err(_) if sealing.encrypted_view => return Ok(Self::Plain),
            Err(Unread::Format(e)) if e.kind() == ErrorKind::NotEncrypted && sealing.passthrough => {
                return Ok(Self::Plain);
            }
            Err(Unread::Format(e)) => return Err(e.into()),
            Err(Unread::Lower(e)) => return Err(e.into()),
        };
        if sealing.encrypted_view {
            return Ok(match header.place() {
                HeaderLocation::File => Self::Plain,
                HeaderLocation::Xattr => {
                    let header = header.moved_to(HeaderLocation::File).to_file();
                    Self::Shown { len: header.len() as u64 + lower_size(&fstat(fd)?), header }
                }
            });
        }
        let contents = header.unlock(&sealing.keys.keyring)?.contents()?;
        Ok(Self::Sealed(EncryptedFile { header, contents }))
    }
}

enum Unread {
    Lower(Errno),
    Format(crate::Error),
}

impl From<Errno> for Unread {
    fn from(e: Errno) -> Self {
        Self::Lower(e)
    }
}

impl From<crate::Error> for Unread {
    fn from(e: crate::Error) -> Self {
        Self::Format(e)
    }
}

/// Returns a lower file's header, or `None` for a file without a header and without contents.
fn header_of(sealing: &Sealing, fd: BorrowedFd<'_>) -> Result<Option<FileHeader>, Unread> {
    let mut bytes = [0; FileHeader::PARSED];
    if sealing.place == HeaderLocation::Xattr {
        match fgetxattr(fd, XATTR, &mut bytes[..]) {
            Ok(len) => return Ok(Some(FileHeader::read_xattr(&bytes[..len])?)),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => {}
            Err(e) => return Err(e.into()),
        }
    }
    match read_most(fd, &mut bytes, 0)? {
        len if is_blank(fd, &bytes[..len])? => Ok(None),
        len => Ok(Some(FileHeader::read(&bytes[..len])?)),
    }
}

/// Returns the size of a file that is not open, at `path` in /proc: the size in the header, if any.
///
/// Fails when the lower file cannot be opened or read at present: it may have a header.
pub(crate) fn size_of(view: &LowerView, path: &str, stat: &Stat) -> Result<u64, Errno> {
    let lower = lower_size(stat);
    let Some(sealing) = &view.sealing else { return Ok(lower) };
    if lower == 0 && sealing.place == HeaderLocation::File {
        return Ok(0);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let quiet = openat(CWD, path, flags | OFlags::NOATIME, Mode::empty());
    let fd = match quiet.or_else(|_| openat(CWD, path, flags, Mode::empty())) {
        Ok(fd) => fd,
        // This user may not read it: shown with its lower size, as files without a header.
        Err(Errno::ACCESS | Errno::PERM) => return Ok(lower),
        Err(e) => return Err(e),
    };
    Ok(match header_of(sealing, fd.as_fd()) {
        Ok(Some(header)) if !sealing.encrypted_view => header.size(),
        Ok(Some(header)) if header.place() == HeaderLocation::Xattr => FileHeader::IN_FILE as u64 + lower,
        // Like the size of an open file of this kind.
        Ok(None) if !sealing.passthrough => 0,
        Err(Unread::Lower(e)) => return Err(e),
        _ => lower,
    })
}

pub(super) fn lower_size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}
