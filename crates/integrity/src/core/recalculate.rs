//! Recalculation of tags from the existing data, step by step, beside reads and writes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::journal::write_unused;
use super::{Core, LowerDisks, Side, StepResult};
use crate::{Flags, JournalRound, WriteMode};

/// Bytes of data of a step.
const STEP: u64 = 1 << 20;
/// The number of steps between updates of the progress in the superblock.
const STEPS: u32 = 16;

/// The progress of the recalculation.
pub(super) struct Recalculation {
    /// Tags of sectors from here on may be wrong.
    done: AtomicU64,
    /// True when only regions of the bitmap have wrong tags.
    by_bitmap: bool,
    steps: AtomicU32,
}

impl Recalculation {
    /// The state without a recalculation.
    pub(super) fn none() -> Self {
        Self::from(u64::MAX, false)
    }

    /// The state in which all tags before `sector` are right.
    pub(super) fn from(sector: u64, by_bitmap: bool) -> Self {
        Self { done: sector.into(), by_bitmap, steps: 0.into() }
    }

    /// True when tags before `sector` are right.
    pub(super) fn has_done(&self, sector: u64) -> bool {
        sector <= self.done.load(SeqCst)
    }

    /// True when only regions of the bitmap have wrong tags.
    pub(super) fn follows_bitmap(&self) -> bool {
        self.by_bitmap
    }

    pub(super) fn progress(&self, of: u64) -> Option<(u64, u64)> {
        let done = self.done.load(SeqCst);
        (done < of).then_some((done, of))
    }
}

impl Core {
    /// True while tags are left to be recalculated.
    pub(crate) fn is_recalculating(&self) -> bool {
        !self.is_read_only()
            && self.failed.get().is_none()
            && self.recalculation.progress(self.geometry.provided()).is_some()
    }

    /// Recalculates the tags of some blocks. False: none are left.
    pub(crate) fn recalculate(&self, lower: &mut dyn LowerDisks) -> StepResult<bool> {
        if !self.is_recalculating() {
            return Ok(false);
        }
        let Some(hash) = &self.hash else { return Ok(false) };
        let spb = self.geometry.block_sectors();
        let mut from = self.recalculation.done.load(SeqCst);
        let mut most = STEP / 512;
        if let Some(regions) = self.regions.as_ref().filter(|_| self.recalculation.follows_bitmap()) {
            let sectors =
                regions.next_unsound(from).unwrap_or(self.geometry.provided()..self.geometry.provided());
            (from, most) = (sectors.start, most.min(sectors.end - sectors.start));
        }
        if from < self.geometry.provided() {
            let place = self.geometry.place(from);
            let blocks = from / spb..(from + place.sectors.min(most)) / spb;
            let _claim = self.claims.take(blocks.clone(), true);
            let mut made = || {
                let mut data = vec![0; self.count(&blocks) * self.geometry.block_size()];
                let mut tags = vec![0; self.count(&blocks) * self.geometry.tag_size()];
                self.read_places(lower, blocks.clone(), blocks.start, &mut data, &mut [])?;
                hash.make(from, &data, &mut tags);
                match self.mode {
                    WriteMode::Inline => self.write_places(lower, blocks.clone(), &data, &tags),
                    _ => self.cache.write(lower, place.tag, &tags),
                }
            };
            // In journal mode no blocks may be copied back there meanwhile.
            let made = match &self.journal {
                Some(journal) => journal.apart(&[], made),
                None => made(),
            };
            self.last(made)?;
            from = blocks.end * spb;
        }
        let is_over = from >= self.geometry.provided();
        if let Some(regions) = &self.regions {
            regions.is_redone(from);
        }
        self.recalculation.done.store(from, SeqCst);
        if self.recalculation.steps.fetch_add(1, SeqCst) % STEPS == STEPS - 1 || is_over {
            let kept = self.keep_progress(lower);
            self.last(kept)?;
        }
        Ok(!is_over)
    }

    /// Writes the progress, once all earlier tags are durable. With a bitmap its bits are the
    /// progress, until the end.
    fn keep_progress(&self, lower: &mut dyn LowerDisks) -> StepResult {
        let done = self.recalculation.done.load(SeqCst);
        self.flush_places(lower)?;
        if self.recalculation.follows_bitmap() && done < self.geometry.provided() {
            return Ok(());
        }
        {
            let superblock = &mut self.superblock().0;
            if !superblock.flags.has(Flags::RECALCULATING) {
                return Ok(());
            }
            superblock.recalculated = done;
        }
        self.write_superblock(lower)
    }

    /// Writes the superblock of a closed volume. With wrong tags left, the bitmap stays, which has
    /// their regions.
    pub(super) fn close_superblock(&self, lower: &mut dyn LowerDisks) -> StepResult {
        if let Some(regions) = &self.regions {
            if !regions.is_all_sound() {
                return regions.sweep(lower, &self.cache, Duration::ZERO);
            }
            if let Some(sections) = &self.sections {
                // An unused ring replaces the bitmap.
                let ring = (0..self.geometry.sections()).map(|index| (index, JournalRound::FIRST));
                write_unused(lower, &self.geometry, sections, ring)?;
            }
            {
                let superblock = &mut self.superblock().0;
                superblock.flags.set(Flags::DIRTY_BITMAP, false);
                // No region is left: all tags are made, even if the last step was not taken.
                if superblock.flags.has(Flags::RECALCULATING) {
                    superblock.recalculated = self.geometry.provided();
                }
            }
            return self.write_superblock(lower);
        }
        if self.is_recalculating() { self.keep_progress(lower) } else { Ok(()) }
    }

    /// Writes the superblock, durably.
    pub(super) fn write_superblock(&self, lower: &mut dyn LowerDisks) -> StepResult {
        let bytes = {
            let guard = self.superblock();
            let (superblock, mac) = &*guard;
            superblock.encode(self.mode, mac.as_ref()).map_err(super::open::as_device_error)?
        };
        lower.write(Side::Meta, self.geometry.start() * 512, &bytes, true)
    }
}
