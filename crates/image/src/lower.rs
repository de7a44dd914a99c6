//! The lower device of an image: a locked file or block device, a server's export, or a program's
//! own device.

mod remote;

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use underseal_device::{
    Blocking, Device, ExpectedBytes, FileDevice, NbdDevice, RbdDevice, ReopenedFile, Runs, SharedImage,
    lock_loop_file, nbd, rbd,
};
use underseal_integrity::Disk;
use underseal_volume::reencrypt::DiskBlocks;
use underseal_volume::{HeaderLock, LockTo, NamedFile, ReadAt, Target, is_header_locked};

use self::remote::RemoteDevice;
use crate::file_lock::{lock_again, open_again};
use crate::one_process::{OneProcess, forked, refuse_child};
use crate::reencrypt::refuse_marked;
use crate::{Error, ErrorKind, Result};

/// A program's own lower device: a split image, an object store, a file in memory. Calls come from
/// several threads at once.
///
/// Functions of a device must not use the image that lies on the device: that fails with EDEADLK in
/// the thread of the call, and waits for ever where a function waits for another thread that does
/// so.
///
/// Errors of these functions reach the caller of [`Image`](crate::Image) as the cause of an
/// [`ErrorKind::Io`].
pub trait LowerDevice: Send + Sync {
    /// The size in bytes. It must not change while an image is open.
    ///
    /// # Errors
    /// Any error of the device itself.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, else the device's own.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Unsupported` unless the device is writable, else the device's own.
    fn write_all_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns when everything that was written is on stable storage.
    ///
    /// # Errors
    /// Any error of the device itself.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// The descriptor of the file or block device that the device reads and writes, if it is one.
    /// As the image is opened, that file is opened a second time and locked, as one that is opened
    /// by its path. Writes and flushes fail once it is shorter than it was then, or was removed or
    /// replaced.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

/// The lower device of an open image; clones are the same device.
#[derive(Clone)]
pub(crate) struct Lower {
    kind: Arc<Kind>,
    /// The process that opened it. A child shares its locks, and would not wait for it.
    process: u32,
}

enum Kind {
    /// A file or block device. Reads and writes go through a separate open file.
    File {
        device: Arc<FileDevice>,
        file: ReopenedFile,
        /// Of a loop device, locked.
        _below: Option<File>,
    },
    /// A detached header, which is locked by each operation on it.
    Header(NamedFile),
    /// An NBD server's export, or an image on Ceph: one connection, of one process.
    Remote(OneProcess<RemoteDevice>),
    Custom {
        device: Arc<dyn LowerDevice>,
        /// The device's file, locked, and the file below it. The program reads and writes by other
        /// means; here is seen what other programs do to the file.
        file: Option<FileDevice>,
        _below: Option<File>,
        /// The error of a sync that has failed: the next one might succeed without what was written
        /// before.
        lost: OnceLock<SyncError>,
    },
    /// A partition of a disk.
    Part { of: Lower, range: Range<u64> },
}

/// The system's error number of a failed sync, if it had one.
struct SyncError(Option<i32>);

impl SyncError {
    fn again(&self) -> io::Error {
        let what = "an earlier flush has failed: what was written before it may be lost";
        self.0.map_or_else(|| io::Error::other(what), io::Error::from_raw_os_error)
    }
}

impl Lower {
    fn new(kind: Kind) -> Self {
        Self { kind: Arc::new(kind), process: process::id() }
    }

    /// Refuses changes by a process that was forked after the opening.
    fn may_change(&self) -> io::Result<()> {
        refuse_child(self.process)
    }

    /// Opens a path, `nbd:` or `nbds:` URI, or `rbd:` address.
    pub(crate) fn open(path: &Path, writable: bool) -> Result<Self> {
        let remote = |device: Arc<dyn Device>| -> Result<Self> {
            let requests = Mutex::new(Blocking::passed_on(&*device)?);
            Ok(Self::new(Kind::Remote(OneProcess::new(RemoteDevice { requests, device }))))
        };
        let refused = |e: underseal_device::Error| Error::new(ErrorKind::BadOption, e.to_string());
        match path.to_str() {
            Some(text) if nbd::NbdAddress::is_uri(text) => {
                let address: nbd::NbdAddress = text.parse().map_err(refused)?;
                let locks = if writable { nbd::lock_export(&address)? } else { Vec::new() };
                let device = NbdDevice::open(address, !writable)?;
                device.keep_open(locks);
                remote(Arc::new(device))
            }
            Some(text) if rbd::RbdAddress::is_one(text) => {
                let address: rbd::RbdAddress = text.parse().map_err(refused)?;
                remote(Arc::new(RbdDevice::open(&address, !writable, None)?))
            }
            _ => {
                let options = underseal_device::OpenOptions { read_only: !writable, ..Default::default() };
                refuse_marked(path)?;
                let device = FileDevice::open(path, options)?;
                // A reencryption may have begun, and its process have ended, before the lock was
                // taken.
                refuse_marked(path)?;
                Self::of_locked(device, writable)
            }
        }
    }

    /// Refuses a file that a loop device is over, or another one over the file of a loop device: a
    /// file system that is mounted there would write over what is made.
    pub(crate) fn refuse_looped(&self) -> Result<()> {
        let file = match &*self.kind {
            Kind::File { file, .. } => file.file(),
            Kind::Custom { file: Some(device), .. } => device.file(),
            _ => return Ok(()),
        };
        let Some(over) = underseal_device::loop_over(file) else { return Ok(()) };
        let what = format!("the file {over}: detach that first");
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Opens an open file or block device once more: other users of the descriptor share the locks
    /// of its open file. Where the system does not allow that, the file itself is taken over.
    pub(crate) fn file(file: File, writable: bool) -> Result<Self> {
        let file = underseal_device::open_again(&file, 0).unwrap_or(file);
        refuse_marked_file(file.as_raw_fd())?;
        let options = underseal_device::OpenOptions { read_only: !writable, ..Default::default() };
        let device = FileDevice::over(file, "the open file", options)?;
        refuse_marked_file(device.file().as_raw_fd())?;
        Self::of_locked(device, writable)
    }

    fn of_locked(device: FileDevice, writable: bool) -> Result<Self> {
        let file = device.reopen()?;
        let below = lock_loop_file(file.file(), writable)?;
        Ok(Self::new(Kind::File { device: Arc::new(device), file, _below: below }))
    }

    /// Opens a file that holds a header and no data.
    pub(crate) fn open_header(path: &Path, writable: bool) -> Result<Self> {
        let file = File::options().read(true).write(writable).open(path).map_err(|e| {
            Error::new(ErrorKind::Io, format!("{}: cannot open", path.display())).with_source(e)
        })?;
        Ok(Self::of_header(NamedFile::opened(file)))
    }

    /// Takes over an open file that holds a header and no data.
    pub(crate) fn of_header(file: NamedFile) -> Self {
        Self::new(Kind::Header(file))
    }

    /// Locks the file of a header as an image for writing, and the file below a loop device, for as
    /// long as the returned files are open. No files where there can be no locks.
    pub(crate) fn lock_image(&self) -> Result<Vec<File>> {
        let Kind::Header(header) = &*self.kind else { return Ok(vec![]) };
        let file = header.file();
        let below = lock_loop_file(file, true)?;
        Ok(lock_again(file.as_raw_fd(), true)?.into_iter().chain(below).collect())
    }

    /// Whether both are the same file or block device.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let about = |lower: &Self| lower.local()?.metadata().ok();
        let (Some(one), Some(other)) = (about(self), about(other)) else { return false };
        let is_block = |of: &Metadata| of.file_type().is_block_device();
        let is_one_device = is_block(&one) && is_block(&other) && one.rdev() == other.rdev();
        (one.dev(), one.ino()) == (other.dev(), other.ino()) || is_one_device
    }

    /// The open file of a file or block device.
    pub(crate) fn local(&self) -> Option<&File> {
        match &*self.kind {
            Kind::File { file, .. } => Some(file.file()),
            Kind::Header(header) => Some(header.file()),
            _ => None,
        }
    }

    /// How the disk below is written.
    pub(crate) fn blocks(&self) -> Result<DiskBlocks> {
        let unknown = |e| Error::new(ErrorKind::Io, "cannot find the size of its blocks").with_source(e);
        match &*self.kind {
            Kind::File { file, .. } => DiskBlocks::of(file.file()).map_err(unknown),
            _ => Ok(DiskBlocks::OF_FILES),
        }
    }

    /// Takes a program's own device, and locks its file if it has one.
    pub(crate) fn custom(device: Arc<dyn LowerDevice>, writable: bool) -> Result<Self> {
        let file = match device.descriptor() {
            Some(descriptor) => {
                let file = lock_again(descriptor, writable)?;
                refuse_marked_file(descriptor)?;
                file
            }
            None => None,
        };
        let below = file.as_ref().map(|file| lock_loop_file(file, writable)).transpose()?.flatten();
        let file = file.map(seen).transpose()?;
        Ok(Self::new(Kind::Custom { device, file, _below: below, lost: OnceLock::new() }))
    }

    /// Takes a program's own device for changes of its header, which lock that alone.
    pub(crate) fn custom_header(device: Arc<dyn LowerDevice>) -> Self {
        let file = device.descriptor().and_then(|descriptor| open_again(descriptor, false).ok());
        let file = file.and_then(|file| seen(file).ok());
        Self::new(Kind::Custom { device, file, _below: None, lost: OnceLock::new() })
    }

    /// The bytes `range` of the device, as a device.
    pub(crate) fn part(self, range: Range<u64>) -> Self {
        Self::new(Kind::Part { of: self, range })
    }

    /// The device for a layer that runs on it with its own requests.
    pub(crate) fn device(&self) -> Result<Arc<dyn Device>> {
        match &*self.kind {
            Kind::File { device, .. } => Ok(device.clone()),
            Kind::Remote(remote) => Ok(remote.get().map_err(forked)?.device.clone()),
            _ => {
                let what = "authenticated volumes are written in files, block devices and remote images";
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }

    /// Makes flushes and changes fail once another program has put data in the place of the header,
    /// whose copies have these bytes, or changed its UUID. `apart` has a detached header.
    pub(crate) fn expect_header(&self, mut copies: [Runs; 2], apart: Option<&Self>) -> Result<()> {
        let device = match &*self.kind {
            Kind::File { device, .. } => device,
            Kind::Custom { file: Some(device), .. } => device,
            Kind::Part { of, range } => {
                if apart.is_none() {
                    copies.iter_mut().flatten().for_each(|(at, _)| *at += range.start);
                }
                return of.expect_header(copies, apart);
            }
            _ => return Ok(()),
        };
        let elsewhere = match apart.map(|apart| &*apart.kind) {
            Some(Kind::Header(header)) => Some(header.try_clone().map_err(unwatched)?),
            Some(_) => return Ok(()),
            None => None,
        };
        Ok(device.expect(ExpectedBytes::of_header(copies, elsewhere, is_header_locked))?)
    }

    /// Makes a range of the lower device's bytes read as anything.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.may_change().map_err(forked)?;
        match &*self.kind {
            Kind::Part { of, range } => {
                let beyond = |e| Error::new(ErrorKind::OutOfRange, "beyond the partition").with_source(e);
                of.discard(within(range, offset, len).map_err(beyond)?, len)
            }
            Kind::File { device, .. } => Ok(Blocking::new(&**device)?.discard(offset, len)?),
            Kind::Remote(remote) if remote.get().map_err(forked)?.device.geometry().discard => {
                Ok(remote.get().map_err(forked)?.requests().discard(offset, len)?)
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "the lower device has no discards")),
        }
    }
}

/// A file that a program's own device reads and writes, to see what other programs do to it.
fn seen(file: File) -> Result<FileDevice> {
    let options = underseal_device::OpenOptions { read_only: true, unlocked: true, ..Default::default() };
    Ok(FileDevice::over(file, "the open file", options)?)
}

fn unwatched(e: io::Error) -> Error {
    Error::new(ErrorKind::Io, "the header cannot be watched").with_source(e)
}

/// As [`refuse_marked`], by the path of an open file, where it has one still.
fn refuse_marked_file(file: RawFd) -> Result<()> {
    let path = std::fs::read_link(format!("/proc/self/fd/{file}"));
    path.map_or(Ok(()), |path| refuse_marked(&path))
}

/// Where `len` bytes at `offset` of a partition lie on its disk.
fn within(range: &Range<u64>, offset: u64, len: u64) -> io::Result<u64> {
    let at = range.start.checked_add(offset);
    let fits = |at: &u64| at.checked_add(len).is_some_and(|end| end <= range.end);
    at.filter(fits).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl ReadAt for Lower {
    fn size(&self) -> io::Result<u64> {
        match &*self.kind {
            Kind::File { file, .. } => ReadAt::size(file.file()),
            Kind::Header(header) => ReadAt::size(header),
            Kind::Remote(remote) => Ok(remote.get()?.device.geometry().size),
            Kind::Custom { device, .. } => device.size(),
            Kind::Part { range, .. } => Ok(range.end - range.start),
        }
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &*self.kind {
            Kind::File { file, .. } => FileExt::read_exact_at(file.file(), bytes, offset),
            Kind::Header(header) => header.read_exact_at(bytes, offset),
            Kind::Remote(remote) => remote.get()?.read(bytes, offset),
            Kind::Custom { device, .. } => device.read_exact_at(bytes, offset),
            Kind::Part { of, range } => of.read_exact_at(bytes, within(range, offset, bytes.len() as u64)?),
        }
    }

    fn forget_cached(&self, range: Range<u64>) {
        match &*self.kind {
            Kind::File { file, .. } => file.file().forget_cached(range),
            Kind::Header(header) => header.forget_cached(range),
            Kind::Part { of, range: part } => {
                of.forget_cached(part.start.saturating_add(range.start)..part.start.saturating_add(range.end))
            }
            _ => {}
        }
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        let refused = |e| {
            let what = "the header cannot be used by this process";
            underseal_volume::Error::new(underseal_volume::ErrorKind::Busy, what).with_source(e)
        };
        if to == LockTo::Change {
            self.may_change().map_err(refused)?;
        }
        let file = match &*self.kind {
            Kind::File { file, .. } => file.file(),
            Kind::Header(header) => header.file(),
            Kind::Custom { file: Some(device), .. } => device.file(),
            Kind::Part { of, .. } => return of.lock_within(to, patience),
            Kind::Remote(remote) => {
                let remote = remote.get().map_err(refused)?;
                let updates = remote.device.shared_image().and_then(SharedImage::update_lock);
                let Some(updates) = updates else { return Ok(None) };
                let locked = |e: underseal_device::Error| {
                    underseal_volume::Error::new(underseal_volume::ErrorKind::Locked, e.to_string())
                };
                return Ok(Some(HeaderLock::of(
                    updates.take(to == LockTo::Change, patience).map_err(locked)?,
                )));
            }
            Kind::Custom { file: None, .. } => return Ok(None),
        };
        if refuse_child(self.process).is_ok() {
            return ReadAt::lock_within(file, to, patience);
        }
        // A lock of the open file that this process shares with its parent would change the
        // parent's.
        match underseal_device::open_again(file, 0) {
            Ok(own) => HeaderLock::to_read(own, patience),
            Err(_) => Ok(None),
        }
    }
}

impl Target for Lower {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.may_change()?;
        match &*self.kind {
            Kind::File { file, .. } => file.write_all_at(bytes, offset),
            Kind::Header(header) => header.write_all_at(bytes, offset),
            Kind::Remote(remote) => remote.get()?.write(bytes, offset),
            Kind::Custom { device, file, .. } => {
                if let Some(file) = file {
                    // The program alone knows where in the file the bytes go.
                    file.may_change_to(u64::MAX).map_err(io::Error::other)?;
                }
                device.write_all_at(bytes, offset)
            }
            Kind::Part { of, range } => of.write_all_at(bytes, within(range, offset, bytes.len() as u64)?),
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        // A child would get the write-back errors of the open file that its parent has.
        self.may_change()?;
        match &*self.kind {
            Kind::File { file, .. } => file.sync_all(),
            Kind::Header(header) => header.sync_all(),
            Kind::Remote(remote) => remote.get()?.requests().flush().map_err(io::Error::other),
            Kind::Custom { device, file, lost, .. } => {
                if let Some(error) = lost.get() {
                    return Err(error.again());
                }
                device.sync().inspect_err(|e| drop(lost.set(SyncError(e.raw_os_error()))))?;
                file.as_ref().map_or(Ok(()), FileDevice::check).map_err(io::Error::other)
            }
            Kind::Part { of, .. } => of.sync_all(),
        }
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.may_change()?;
        match &*self.kind {
            Kind::File { file, .. } => file.file().set_len(size),
            Kind::Header(header) => header.set_len(size),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Disk for Lower {
    fn size(&self) -> io::Result<u64> {
        ReadAt::size(self)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
