//! A disk over another one, which stays unchanged: writes stay in memory. It shows a volume as it
//! would be after its replay.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use crate::disk::Disk;
use crate::geometry::{SECTOR, SECTOR_BYTES};

/// The most memory, 1 GiB: more than any journal with the kernel's defaults.
const MOST_SECTORS: usize = 2 << 20;

/// Sectors in memory over those of a disk, which is borrowed or owned.
pub struct Overlay<D: Disk> {
    below: D,
    /// Only read, once a volume is open: reads of several threads wait for none, nor do those of a
    /// child of a fork for its parent's.
    sectors: RwLock<SectorMap>,
}

/// Written sectors, by number.
#[derive(Default)]
pub(crate) struct SectorMap(BTreeMap<u64, [u8; SECTOR_BYTES]>);

impl<D: Disk> Overlay<D> {
    /// An overlay of `below` without any sectors.
    pub fn new(below: D) -> Self {
        Self { below, sectors: RwLock::default() }
    }

    /// The written sectors, except those in these bytes.
    pub(crate) fn into_sectors(self, without: Range<u64>) -> SectorMap {
        let mut sectors = self.sectors.into_inner().unwrap_or_else(PoisonError::into_inner);
        sectors.0.retain(|sector, _| !without.contains(&(sector * SECTOR)));
        sectors
    }
}

impl SectorMap {
    /// Copies the sectors that lie in bytes read at `offset` over these bytes.
    pub(crate) fn put_over(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset.saturating_add(bytes.len() as u64);
        for (sector, over) in self.0.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            // The sector and the bytes may overlap in part.
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
        self.sectors.read().unwrap_or_else(PoisonError::into_inner).put_over(offset, bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (first, end) = (offset / SECTOR, offset.saturating_add(bytes.len() as u64).div_ceil(SECTOR));
        let mut whole = vec![0; usize::try_from((end - first) * SECTOR).map_err(io::Error::other)?];
        self.read_at(first * SECTOR, &mut whole)?;
        let at = usize::try_from(offset % SECTOR).map_err(io::Error::other)?;
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        let mut sectors = self.sectors.write().unwrap_or_else(PoisonError::into_inner);
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
