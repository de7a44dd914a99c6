//! Whether the users of the data can take larger sectors, and a smaller device. A file system whose
//! blocks are smaller than a device's sectors cannot be mounted any more, although nothing of it is
//! lost.

use underseal_cipher::SectorSize;

use crate::signature::{LOOKED_AT, block_size, filesystem_len};
use crate::{ActivateOptions, Header, ReadAt, Result, VolumeKey, storage};

/// Whether data can be on sectors of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectorFit {
    /// The sectors are no larger than before, or than the blocks of the file system.
    Fits,
    /// The data begin with no file system that is known.
    Unknown,
    /// The file system has smaller blocks, of this many bytes.
    SmallerBlocks(u32),
}

impl SectorFit {
    /// Looks at data that are not encrypted yet. Data of no known file system fit.
    ///
    /// # Errors
    /// `Io`.
    pub fn of_plain(sector_size: SectorSize, data: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let len = usize::try_from(storage::size(data)?.min(LOOKED_AT)).unwrap_or(0);
        let start = storage::read(data, 0, len)?;
        Ok(block_size(&start).map_or(Self::Fits, |blocks| Self::on(sector_size, blocks)))
    }

    /// Looks at the data of a closed volume.
    pub fn of_volume(
        sector_size: SectorSize,
        header: &Header,
        key: &VolumeKey,
        (data, detached): (&(impl ReadAt + ?Sized), bool),
    ) -> Self {
        let sectors = header.info().segments.iter().map(|segment| segment.sector_size.unwrap_or(512)).max();
        if sector_size.bytes() as u64 <= sectors.unwrap_or(512) as u64 {
            return Self::Fits;
        }
        let start = plain_start(header, key, data, detached);
        let blocks = start.as_deref().and_then(block_size);
        blocks.map_or(Self::Unknown, |blocks| Self::on(sector_size, blocks))
    }

    fn on(sector_size: SectorSize, blocks: u32) -> Self {
        if (blocks as usize) < sector_size.bytes() { Self::SmallerBlocks(blocks) } else { Self::Fits }
    }
}

/// Returns how many bytes the file system of plain data takes, by its superblock; `None` without a
/// known file system.
///
/// # Errors
/// `Io`.
pub fn plain_filesystem_len(data: &(impl ReadAt + ?Sized)) -> Result<Option<u64>> {
    let len = usize::try_from(storage::size(data)?.min(LOOKED_AT)).unwrap_or(0);
    Ok(filesystem_len(&storage::read(data, 0, len)?))
}

/// As [`plain_filesystem_len`], of the data of a closed volume; `None` too where they cannot be
/// read.
pub fn volume_filesystem_len(
    header: &Header,
    key: &VolumeKey,
    (data, detached): (&(impl ReadAt + ?Sized), bool),
) -> Option<u64> {
    plain_start(header, key, data, detached).as_deref().and_then(filesystem_len)
}

/// The first decrypted bytes of the volume; none where they cannot be read, or are not all of one
/// segment.
fn plain_start(
    header: &Header,
    key: &VolumeKey,
    data: &(impl ReadAt + ?Sized),
    detached: bool,
) -> Option<Vec<u8>> {
    let options = ActivateOptions { detached, ..ActivateOptions::default() };
    let volume = header.activate(key, data.size().ok()?, &options).ok()?;
    let segment = volume.segments().first()?;
    let stored = segment.as_stored()?;
    let len = usize::try_from(segment.len.min(LOOKED_AT)).ok()?;
    let mut bytes = vec![0; len - len % stored.cipher.sector_size().bytes()];
    data.read_exact_at(&mut bytes, stored.lower).ok()?;
    stored.cipher.decrypt(stored.iv_offset, bytes.as_mut_slice().into());
    Some(bytes)
}
