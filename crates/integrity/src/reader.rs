//! Reads a volume's blocks and compares their tags. The journal was replayed before, and is not
//! read.

use crate::disk::{self, Disks};
use crate::geometry::SECTOR;
use crate::{Flags, OpenSettings, OpenedVolume, Result, WriteMode};

/// Reads blocks of an opened volume.
pub struct VolumeReader<'d> {
    disks: Disks<'d>,
    opened: &'d OpenedVolume,
    verifies: bool,
    discards: bool,
}

impl<'d> VolumeReader<'d> {
    /// A reader of a volume that was `opened` with these options.
    pub fn new(disks: Disks<'d>, opened: &'d OpenedVolume, options: &OpenSettings) -> Self {
        let verifies = !matches!(options.mode, WriteMode::Recovery | WriteMode::Inline);
        Self { disks, opened, verifies, discards: options.allow_discards }
    }

    /// Reads from `sector` on, where a block begins, into `data`, whole blocks. The sectors of
    /// blocks whose tags are wrong go to `bad`, in order; their data is returned nevertheless.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(&self, sector: u64, data: &mut [u8], bad: &mut Vec<u64>) -> Result<()> {
        let geometry = &self.opened.geometry;
        let (mut sector, mut left) = (sector, data);
        while !left.is_empty() {
            let place = geometry.place(sector);
            let run = usize::try_from(place.sectors * SECTOR).unwrap_or(usize::MAX).min(left.len());
            let (now, later) = left.split_at_mut(run);
            disk::read(self.disks.data, place.data, now)?;
            self.verify(sector, now, place.tag, bad)?;
            sector += run as u64 / SECTOR;
            left = later;
        }
        Ok(())
    }

    fn verify(&self, sector: u64, data: &[u8], tag: u64, bad: &mut Vec<u64>) -> Result<()> {
        let Some(tags) = self.opened.tags.as_ref().filter(|_| self.verifies) else { return Ok(()) };
        let geometry = &self.opened.geometry;
        let mut stored = vec![0; data.len() / geometry.block_size() * geometry.tag_size()];
        disk::read(self.disks.metadata(), tag, &mut stored)?;
        bad.extend(tags.bad(sector, data, &stored, self.discards).filter(|sector| self.has_tag(*sector)));
        Ok(())
    }

    /// False while the block's tag is still to be recalculated.
    fn has_tag(&self, sector: u64) -> bool {
        let superblock = &self.opened.superblock;
        if !superblock.flags.has(Flags::RECALCULATING) || sector < superblock.recalculated {
            return true;
        }
        // With a bitmap only regions with set bits are recalculated.
        let bitmap = self.opened.bitmap.as_ref();
        bitmap.is_some_and(|bitmap| !bitmap.is_set(bitmap.bits_of(sector..sector + 1).start))
    }
}
