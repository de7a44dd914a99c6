//! The lower device of an image's name: a file or block device; an NBD server's export where the
//! name is a URI; an image of a Ceph cluster.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use underseal_device::{
    Blocking, Device, FileDevice, Geometry, NbdDevice, OpenOptions, RbdDevice, ReopenedFile, SharedImage,
    UpdateLock, nbd, rbd,
};
use underseal_export::control::Directory;
use underseal_volume::{ErrorKind, HeaderLock, LockTo, ReadAt, Target};

use crate::error::{Error, Result};
use crate::loop_file;
use crate::reencryption::{Bytes, Where, marker};

/// A lower device.
pub(crate) enum Lower {
    File(Arc<FileDevice>),
    Nbd(Arc<NbdDevice>),
    Rbd(Arc<RbdDevice>),
}

/// The address of an image that is not a local file.
pub(crate) enum Remote {
    /// At an NBD server.
    Nbd(nbd::NbdAddress),
    /// On a Ceph cluster.
    Rbd(rbd::RbdAddress),
}

impl Lower {
    /// Opens a file or an image on Ceph, locked, or connects to a server.
    ///
    /// # Errors
    /// The device's; `Usage` for a URI that is none, and for an image without a header that is in
    /// the middle of a reencryption.
    pub(crate) fn open(name: &Path, options: OpenOptions) -> Result<Self> {
        marker::refuse_unfinished(name)?;
        let opened = Self::open_unfinished(name, options)?;
        // A reencryption may have begun, and its process have ended, before the lock was
        // taken.
        marker::refuse_unfinished(name)?;
        Ok(opened)
    }

    /// As [`Lower::open`], for a caller that knows how far a reencryption is.
    pub(crate) fn open_unfinished(name: &Path, options: OpenOptions) -> Result<Self> {
        match address(name)? {
            None => {
                let device = FileDevice::open(name, options)?;
                if !options.unlocked {
                    loop_file::lock_below(&device, !options.read_only)?;
                }
                Ok(Self::File(Arc::new(device)))
            }
            Some(_) if options.direct => {
                Err(Error::usage("--direct goes past this machine's page cache, which a server has none of")
                    .with_remedy("without --direct"))
            }
            Some(Remote::Nbd(address)) => {
                let is_locked = !options.read_only && !options.unlocked;
                let files = if is_locked { nbd::lock_export(&address)? } else { Vec::new() };
                let device = NbdDevice::open(address, options.read_only)?;
                device.keep_open(files);
                Ok(Self::Nbd(Arc::new(device)))
            }
            Some(Remote::Rbd(address)) => {
                let directory = Directory::of_user();
                // Without a folder, a later process only has to wait longer.
                let holders = directory.make().is_ok().then(|| directory.path());
                Ok(Self::Rbd(Arc::new(RbdDevice::open(&address, options.read_only, holders)?)))
            }
        }
    }

    /// Takes over a file that this process has just made under this name. The name is not opened:
    /// another user of the folder may put a link there. Fails as [`Lower::open`].
    pub(crate) fn over_new(name: &Path, file: File) -> Result<Self> {
        marker::refuse_unfinished(name)?;
        let device = FileDevice::over(file, &name.display().to_string(), OpenOptions::default())?;
        Ok(Self::File(Arc::new(device)))
    }

    pub(crate) fn geometry(&self) -> Geometry {
        match self {
            Self::File(device) => device.geometry(),
            Self::Nbd(device) => device.geometry(),
            Self::Rbd(device) => device.geometry(),
        }
    }

    /// Returns the same bytes outside of queues: for headers and reencryptions.
    pub(crate) fn again(&self) -> Where {
        match self {
            Self::File(device) => Where::Image(device.clone()),
            Self::Nbd(device) => Where::Device(device.clone()),
            Self::Rbd(device) => Where::Device(device.clone()),
        }
    }

    pub(crate) fn into_device(self) -> Arc<dyn Device> {
        match self {
            Self::File(device) => device,
            Self::Nbd(device) => device,
            Self::Rbd(device) => device,
        }
    }
}

/// Parses a name that is no path. An existing file of that name takes precedence. Fails with
/// `Usage`.
pub(crate) fn address(name: &Path) -> Result<Option<Remote>> {
    let refused = |e: underseal_device::Error| Error::usage(e.to_string());
    match name.to_str() {
        Some(text) if nbd::NbdAddress::is_uri(text) => Ok(Some(Remote::Nbd(text.parse().map_err(refused)?))),
        Some(text) if rbd::RbdAddress::is_one(text) => Ok(Some(Remote::Rbd(text.parse().map_err(refused)?))),
        _ => Ok(None),
    }
}

/// Returns true when a name is no path.
pub(crate) fn is_remote(name: &Path) -> bool {
    name.to_str().is_some_and(|text| nbd::NbdAddress::is_uri(text) || rbd::RbdAddress::is_one(text))
}

/// Returns true when two paths lead to one file, or one block device, or are one address.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    if is_remote(a) {
        return a == b;
    }
    let about = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        // A device can have any number of nodes.
        let is_device = file.file_type().is_block_device();
        Some(if is_device { (true, file.rdev(), 0) } else { (false, file.dev(), file.ino()) })
    };
    about(a).is_some_and(|a| about(b) == Some(a))
}

/// Opens a file or device for its header only: a detached header, or an image that is only
/// inspected. It is not locked as an image, but as each operation on headers requires. Syncs fail
/// once it was removed or replaced. Fails with `Failed`, or the device's error.
pub(crate) fn open_header(path: &Path, read_only: bool) -> Result<Bytes> {
    Where::open(path, read_only)?.into_bytes()
}

/// The bytes of a device's file, through a separate open file.
pub(crate) struct FileBytes(ReopenedFile);

impl FileBytes {
    /// Fails when the file cannot be opened any more.
    pub(crate) fn new(device: &FileDevice) -> Result<Self> {
        Ok(Self(device.reopen()?))
    }
}

impl ReadAt for FileBytes {
    fn size(&self) -> io::Result<u64> {
        self.0.file().size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(self.0.file(), buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        ReadAt::forget_cached(self.0.file(), range);
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        ReadAt::lock_within(self.0.file(), to, patience)
    }
}

impl Target for FileBytes {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.0.file().set_len(size)
    }
}

/// A device's bytes at any offset, for headers on remote images.
pub(crate) struct DeviceBytes {
    way: Mutex<Blocking>,
    size: u64,
    block: u64,
    updates: Option<Arc<UpdateLock>>,
}

impl DeviceBytes {
    /// Fails when the system has no ring or memory.
    pub(crate) fn new(device: &dyn Device) -> Result<Self> {
        let Geometry { size, block, .. } = device.geometry();
        // A reencryption reads ahead in other threads.
        let updates = device.shared_image().and_then(SharedImage::update_lock).cloned();
        Ok(Self { way: Mutex::new(Blocking::passed_on(device)?), size, block: block.into(), updates })
    }

    fn way(&self) -> MutexGuard<'_, Blocking> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the blocks of a range, and returns the range's start in them.
    fn blocks(&self, offset: u64, len: usize) -> io::Result<(u64, Vec<u8>, usize)> {
        let eof = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.size).ok_or_else(eof)?;
        let first = offset / self.block * self.block;
        let span = usize::try_from(end.next_multiple_of(self.block).min(self.size) - first);
        let mut bytes = vec![0; span.map_err(|_| eof())?];
        self.way().read(first, &mut bytes).map_err(io::Error::other)?;
        // The range covers a block in part.
        let skip = usize::try_from(offset - first).map_err(|_| eof())?;
        Ok((first, bytes, skip))
    }
}

impl ReadAt for DeviceBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (_, bytes, skip) = self.blocks(offset, buf.len())?;
        buf.copy_from_slice(&bytes[skip..skip + buf.len()]);
        Ok(())
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        let Some(updates) = &self.updates else { return Ok(None) };
        match updates.take(to == LockTo::Change, patience) {
            Ok(guard) => Ok(Some(HeaderLock::of(guard))),
            Err(e) => Err(underseal_volume::Error::new(ErrorKind::Locked, e.to_string())),
        }
    }
}

impl Target for DeviceBytes {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (first, mut blocks, skip) = self.blocks(offset, bytes.len())?;
        blocks[skip..skip + bytes.len()].copy_from_slice(bytes);
        self.way().write(first, &blocks, false).map_err(io::Error::other)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.way().flush().map_err(io::Error::other)
    }

    fn set_len(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
