//! What an image's name leads to: a file or block device; an NBD server's export where the name is
//! a URI; an image of a Ceph cluster.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use underseal_device::{Blocking, Device, FileDevice, Geometry, NbdDevice, OpenOptions, RbdDevice, nbd, rbd};
use underseal_export::control::Directory;
use underseal_volume::{HeaderLock, LockTo, ReadAt, Target};

use crate::error::{Error, Result};
use crate::loop_file;
use crate::reencryption::{Bytes, Where};

/// A lower device.
pub(crate) enum Lower {
    File(Arc<FileDevice>),
    Nbd(Arc<NbdDevice>),
    Rbd(Arc<RbdDevice>),
}

/// Where an image is that is no file here.
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
    /// The device's; `Usage` for a URI that is none.
    pub(crate) fn open(name: &Path, options: OpenOptions) -> Result<Self> {
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
                Ok(Self::Nbd(Arc::new(NbdDevice::open(address, options.read_only)?)))
            }
            Some(Remote::Rbd(address)) => {
                let directory = Directory::of_user();
                // Without one, who comes after this process is only slower.
                let holders = directory.make().is_ok().then(|| directory.path());
                Ok(Self::Rbd(Arc::new(RbdDevice::open(&address, options.read_only, holders)?)))
            }
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        match self {
            Self::File(device) => device.geometry(),
            Self::Nbd(device) => device.geometry(),
            Self::Rbd(device) => device.geometry(),
        }
    }

    /// The same bytes beside all queues: for headers and reencryptions.
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

/// What a name means that is no path. What is there under that very name is a file.
///
/// # Errors
/// `Usage`.
pub(crate) fn address(name: &Path) -> Result<Option<Remote>> {
    let refused = |e: underseal_device::Error| Error::usage(e.to_string());
    match name.to_str() {
        Some(text) if nbd::NbdAddress::is_uri(text) => Ok(Some(Remote::Nbd(text.parse().map_err(refused)?))),
        Some(text) if rbd::RbdAddress::is_one(text) => Ok(Some(Remote::Rbd(text.parse().map_err(refused)?))),
        _ => Ok(None),
    }
}

/// Whether a name is no path.
pub(crate) fn is_remote(name: &Path) -> bool {
    name.to_str().is_some_and(|text| nbd::NbdAddress::is_uri(text) || rbd::RbdAddress::is_one(text))
}

/// Opens what holds a header and no data that is served: a detached header, or an image that is
/// only looked at. It is not locked as an image is, but as each operation on headers does it.
///
/// # Errors
/// `Failed`; the device's.
pub(crate) fn open_header(path: &Path, read_only: bool) -> Result<Bytes> {
    Where::open(path, read_only)?.into_bytes()
}

/// The bytes of a file that is a device, through an open file of its own. A sync that fails makes
/// the device's flushes fail.
pub(crate) struct FileBytes {
    device: Arc<FileDevice>,
    file: File,
}

impl FileBytes {
    /// # Errors
    /// When the file cannot be opened any more.
    pub(crate) fn new(device: &Arc<FileDevice>) -> Result<Self> {
        Ok(Self { device: device.clone(), file: device.reopen()? })
    }
}

impl ReadAt for FileBytes {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(&self.file, buf, offset)
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        ReadAt::lock_within(&self.file, to, patience)
    }
}

impl Target for FileBytes {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Target::write_all_at(&self.file, bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.device.sync(&self.file)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
}

/// A device's bytes at any offset, for headers on what is no file. Nobody else can lock them.
pub(crate) struct DeviceBytes {
    way: Mutex<Blocking>,
    size: u64,
    block: u64,
}

impl DeviceBytes {
    /// # Errors
    /// When the system has no ring or memory for it.
    pub(crate) fn new(device: &dyn Device) -> Result<Self> {
        let Geometry { size, block, .. } = device.geometry();
        // Whoever reencrypts reads ahead in other threads.
        Ok(Self { way: Mutex::new(Blocking::passed_on(device)?), size, block: block.into() })
    }

    fn way(&self) -> MutexGuard<'_, Blocking> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that a range lies in, read; and where it begins in them.
    fn blocks(&self, offset: u64, len: usize) -> io::Result<(u64, Vec<u8>, usize)> {
        let eof = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.size).ok_or_else(eof)?;
        let first = offset / self.block * self.block;
        let span = usize::try_from(end.next_multiple_of(self.block).min(self.size) - first);
        let mut bytes = vec![0; span.map_err(|_| eof())?];
        self.way().read(first, &mut bytes).map_err(io::Error::other)?;
        // A part of a block.
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
