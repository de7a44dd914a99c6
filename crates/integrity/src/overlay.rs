//! A disk that is left as it is: what is written stays in memory. A volume can be looked at as it
//! would be after its replay.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::disk::Disk;
use crate::geometry::{SECTOR, SECTOR_BYTES};

/// The most that is kept, 1 GiB: more than any journal that the kernel makes by itself holds.
const MOST_SECTORS: usize = 2 << 20;

/// Sectors over those of the disk below, which is borrowed or owned.
pub struct Overlay<D: Disk> {
    below: D,
    sectors: Mutex<SectorMap>,
}

/// What was written, by the number of the sector.
#[derive(Default)]
pub(crate) struct SectorMap(BTreeMap<u64, [u8; SECTOR_BYTES]>);

impl<D: Disk> Overlay<D> {
    /// Nothing yet over `below`.
    pub fn new(below: D) -> Self {
        Self { below, sectors: Mutex::default() }
    }

    /// What was written, without what lies in these bytes.
    pub(crate) fn into_sectors(self, without: Range<u64>) -> SectorMap {
        let mut sectors = self.sectors.into_inner().unwrap_or_else(PoisonError::into_inner);
        sectors.0.retain(|sector, _| !without.contains(&(sector * SECTOR)));
        sectors
    }
}

impl SectorMap {
    /// Puts those that lie in bytes which were read at `offset` over them.
    pub(crate) fn put_over(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset.saturating_add(bytes.len() as u64);
        for (sector, over) in self.0.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            // Either may begin and end within the other.
            let at = sector * SECTOR;
            let skip = usize::try_from(offset.saturating_sub(at)).unwrap_or(SECTOR_BYTES);
            let to = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = (SECTOR_BYTES - skip).min(bytes.len() - to);
            bytes[to..to + len].copy_from_slice(&over[skip..skip + len]);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<D: Disk> Disk for Overlay<D> {
    fn size(&self) -> io::Result<u64> {
        self.below.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, bytes)?;
        self.sectors.lock().unwrap_or_else(PoisonError::into_inner).put_over(offset, bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (first, end) = (offset / SECTOR, offset.saturating_add(bytes.len() as u64).div_ceil(SECTOR));
        let mut whole = vec![0; usize::try_from((end - first) * SECTOR).map_err(io::Error::other)?];
        self.read_at(first * SECTOR, &mut whole)?;
        let at = usize::try_from(offset % SECTOR).map_err(io::Error::other)?;
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        let mut sectors = self.sectors.lock().unwrap_or_else(PoisonError::into_inner);
        for (sector, bytes) in (first..).zip(whole.chunks_exact(SECTOR_BYTES)) {
            sectors.0.insert(sector, std::array::from_fn(|i| bytes[i]));
        }
        if sectors.0.len() > MOST_SECTORS {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "more than 1 GiB of the journal would have to be kept in memory: open the volume for writing once",
            ));
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
