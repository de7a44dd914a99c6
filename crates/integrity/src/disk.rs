//! What a volume lies on: bytes at positions, read and written at once.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::geometry::SECTOR;
use crate::{DiskSizes, Error, ErrorKind, Result};

/// Bytes at positions: a file, a block device, another device, or in tests a recorder of the order
/// of writes.
pub trait Disk {
    /// The size in bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, else whatever the system says.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Whatever the system says.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns when everything that was written is on stable storage.
    ///
    /// # Errors
    /// Whatever the system says.
    fn sync(&self) -> io::Result<()>;
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
}

impl Disk for File {
    fn size(&self) -> io::Result<u64> {
        // The end of a block device is found by seeking only.
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

/// The devices of a volume: superblock, journal and tags may lie on one of their own.
#[derive(Clone, Copy)]
pub struct Disks<'d> {
    /// What holds the data, and without `meta` everything.
    pub data: &'d dyn Disk,
    /// The metadata device.
    pub meta: Option<&'d dyn Disk>,
}

impl<'d> Disks<'d> {
    /// Everything on one device.
    pub fn one(disk: &'d dyn Disk) -> Self {
        Self { data: disk, meta: None }
    }

    /// The device of superblock, journal and tags.
    pub fn metadata(&self) -> &'d dyn Disk {
        self.meta.unwrap_or(self.data)
    }

    /// How large they are.
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

pub(crate) fn sync(disk: &dyn Disk) -> Result<()> {
    disk.sync().map_err(|e| Error::new(ErrorKind::Io, "cannot sync").with_source(e))
}
