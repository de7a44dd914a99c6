//! The disks of a volume: bytes at positions, read and written at once.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::geometry::SECTOR;
use crate::{DiskSizes, Error, ErrorKind, Result};

/// Bytes at positions: a file, a block device, another device, or in tests a recorder of writes.
pub trait Disk {
    /// The size in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, else the error of the system call.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The error of the system call.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Puts all earlier writes on stable storage.
    ///
    /// # Errors
    /// The error of the system call.
    fn sync(&self) -> io::Result<()>;

    /// True when the disk refuses all writes.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl<D: Disk + ?Sized> Disk for &D {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }
}

impl Disk for File {
    fn size(&self) -> io::Result<u64> {
        // Only a seek finds the end of a block device.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The devices of a volume: superblock, journal and tags may lie on a second one.
#[derive(Clone, Copy)]
pub struct Disks<'d> {
    /// The device of the data, and without `meta` of all parts.
    pub data: &'d dyn Disk,
    /// The metadata device.
    pub meta: Option<&'d dyn Disk>,
}

impl<'d> Disks<'d> {
    /// A volume on one device.
    pub fn one(disk: &'d dyn Disk) -> Self {
        Self { data: disk, meta: None }
    }

    /// The device of superblock, journal and tags.
    pub fn metadata(&self) -> &'d dyn Disk {
        self.meta.unwrap_or(self.data)
    }

    /// The sizes of the devices.
    ///
    /// # Errors
    /// `Io`.
    pub fn sizes(&self) -> Result<DiskSizes> {
        Ok(DiskSizes { data: size(self.data)?, meta: self.meta.map(size).transpose()? })
    }

    /// Syncs the data, then the metadata.
    ///
    /// # Errors
    /// `Io`.
    pub fn sync(&self) -> Result<()> {
        if self.meta.is_some() {
            sync(self.data)?;
        }
        sync(self.metadata())
    }
}

pub(crate) fn size(disk: &dyn Disk) -> Result<u64> {
    disk.size().map_err(|e| Error::new(ErrorKind::Io, "cannot find out the size").with_source(e))
}

pub(crate) fn read(disk: &dyn Disk, offset: u64, bytes: &mut [u8]) -> Result<()> {
    disk.read_at(offset, bytes).map_err(|e| {
        let what = format!("cannot read {} bytes at byte {offset}", bytes.len());
        match disk.size() {
            Ok(size) if e.kind() == io::ErrorKind::UnexpectedEof => Error::new(
                ErrorKind::TooSmall,
                format!("{what}: the device of {} sectors ends before", size / SECTOR),
            ),
            _ => Error::new(ErrorKind::Io, what),
        }
        .with_source(e)
    })
}

pub(crate) fn write(disk: &dyn Disk, offset: u64, bytes: &[u8]) -> Result<()> {
    disk.write_at(offset, bytes).map_err(|e| {
        Error::new(ErrorKind::Io, format!("cannot write {} bytes at byte {offset}", bytes.len()))
            .with_source(e)
    })
}

/// Reads bytes and writes them again as they are: after a sync that failed they may be in the page
/// cache only. A disk that refuses writes is left.
pub(crate) fn write_again(disk: &dyn Disk, offset: u64, bytes: &mut [u8]) -> Result<()> {
    if disk.is_read_only() {
        return Ok(());
    }
    read(disk, offset, bytes)?;
    write(disk, offset, bytes)
}

pub(crate) fn sync(disk: &dyn Disk) -> Result<()> {
    disk.sync().map_err(|e| Error::new(ErrorKind::Io, "cannot sync").with_source(e))
}
