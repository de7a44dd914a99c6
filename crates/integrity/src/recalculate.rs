//! The recalculation of tags from the existing data.

use std::ops::Range;

use crate::disk::{self, Disks};
use crate::geometry::SECTOR;
use crate::{Flags, JournalRound, OpenSettings, OpenedVolume, Result, WriteMode};

/// The most sectors of a step.
const STEP: u64 = 32_768;
/// Sectors of a read.
const RUN: u64 = 2048;
/// The number of steps between updates of the progress in the superblock.
const STEPS: u32 = 16;

impl OpenedVolume {
    /// The next sectors to be recalculated, within one area; `None` at the end. In bitmap mode
    /// regions with clear bits are skipped.
    fn next_step(&self) -> Option<Range<u64>> {
        let from = self.recalculation()?;
        let start = match &self.bitmap {
            Some(bitmap) => bitmap
                .dirty()
                .map(|dirty| dirty.start.max(from)..dirty.end)
                .find(|dirty| !dirty.is_empty())?,
            None => from..self.geometry.provided(),
        };
        let area = self.geometry.place(start.start).sectors;
        Some(start.start..start.end.min(start.start + area.min(STEP)))
    }

    /// Recalculates the tags of these sectors, which lie in one area and end at a block boundary;
    /// the caller syncs.
    fn make_tags(&self, disks: &Disks<'_>, sectors: Range<u64>) -> Result<()> {
        let Some(tags) = &self.tags else { return Ok(()) };
        let geometry = &self.geometry;
        let mut at = sectors.start;
        while at < sectors.end {
            let place = geometry.place(at);
            let run = place.sectors.min(RUN).min(sectors.end - at);
            let mut data = vec![0; usize::try_from(run * SECTOR).unwrap_or(0)];
            disk::read(disks.data, place.data, &mut data)?;
            let mut made = vec![0; data.len() / geometry.block_size() * geometry.tag_size()];
            tags.make(at, &data, &mut made);
            disk::write(disks.metadata(), place.tag, &made)?;
            at += run;
        }
        Ok(())
    }

    /// Recalculates all tags that are not made yet, without other writers. `progress` gets the
    /// first remaining sector, and returns whether to continue; finished steps are kept.
    ///
    /// # Errors
    /// `Unsupported` for inline tags, which have no place on a disk; `Io`.
    pub fn recalculate(
        &mut self,
        disks: &Disks<'_>,
        options: &OpenSettings,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<()> {
        if self.recalculation().is_none() {
            return Ok(());
        }
        self.geometry.check_tags_have_places()?;
        for step in 1.. {
            let next = self.next_step();
            if let Some(sectors) = &next {
                self.make_tags(disks, sectors.clone())?;
            }
            self.superblock.recalculated =
                next.as_ref().map_or(self.geometry.provided(), |sectors| sectors.end);
            let goes_on = next.is_some() && progress(self.superblock.recalculated);
            if !goes_on || step % STEPS == 0 {
                disks.sync()?;
                self.write_superblock(disks, options)?;
            }
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Closes a volume in bitmap mode without writes since its recalculation: its journal is empty
    /// again. In other modes it does nothing.
    ///
    /// # Errors
    /// `Io`.
    pub fn close_bitmap(&mut self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        let Some(journal) = self.journal.as_ref().filter(|_| options.mode == WriteMode::Bitmap) else {
            return Ok(());
        };
        journal.clear(disks.metadata(), 0, self.geometry.sections(), JournalRound::FIRST)?;
        disk::sync(disks.metadata())?;
        self.superblock.flags.set(Flags::DIRTY_BITMAP, false);
        self.bitmap = None;
        self.write_superblock(disks, options)
    }
}
