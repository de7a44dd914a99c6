//! Copying back: the journal's blocks go to their places, in runs, and its sections become free.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::super::lock;
use super::super::lower::{LowerDisks, Side, StepResult, may_wait};
use super::super::tag_cache::TagCache;
use super::{Journal, JournaledBlock, Location, Section};
use crate::BlockLocation;

/// Blocks whose places are looked up together.
const BATCH: usize = 512;

impl Journal {
    /// Makes room, by copying blocks back if necessary.
    pub(in crate::core) fn make_room(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        may_wait(lower)?;
        let mut memory = lock(&self.copies);
        let is_full = {
            let state = self.state();
            state.slots.len() == self.window && state.slots.back().is_some_and(|last| last.closed)
        };
        if is_full { self.copy_back(lower, tags, &mut memory, false) } else { Ok(()) }
    }

    /// Writes full sections, and copies back above the watermark.
    pub(in crate::core) fn tend(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        self.write_full(lower)?;
        let in_use = self.state().slots.iter().filter(|slot| slot.closed).count();
        if in_use < self.watermark {
            return Ok(());
        }
        let mut memory = lock(&self.copies);
        self.copy_back(lower, tags, &mut memory, false)
    }

    /// Copies all blocks back. The caller excludes new entries meanwhile.
    pub(in crate::core) fn empty(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        let mut memory = lock(&self.copies);
        self.copy_back(lower, tags, &mut memory, true)
    }

    /// Calls `act` while no blocks are copied back. `forget`: the journal's blocks for these places
    /// become void.
    pub(in crate::core) fn apart<T>(&self, forget: &[Range<u64>], act: impl FnOnce() -> T) -> T {
        let _memory = lock(&self.copies);
        for range in forget {
            let mut state = self.state();
            let blocks: Vec<u64> = state.newest.range(range.clone()).map(|(&block, _)| block).collect();
            for block in blocks {
                state.newest.remove(&block);
            }
        }
        act()
    }

    /// Copies the durable sections' blocks to their places and frees the sections.
    fn copy_back(
        &self,
        lower: &mut dyn LowerDisks,
        tags: &TagCache,
        memory: &mut Vec<u8>,
        close: bool,
    ) -> StepResult {
        self.commit(lower, &mut lock(&self.commits), close, true)?;
        let end = self.state().durable;
        if self.state().first == end {
            return Ok(());
        }
        let mut from = 0;
        loop {
            let batch: Vec<JournaledBlock> = {
                let state = self.state();
                let old = state.newest.range(from..).filter(|(_, location)| location.section < end);
                old.take(BATCH).map(|(&block, &location)| state.found(block, location)).collect()
            };
            let Some(last) = batch.last() else { break };
            from = last.block + 1;
            self.copy(lower, tags, memory, &batch)?;
            let mut state = self.state();
            for found in &batch {
                if state.newest.get(&found.block) == Some(&found.location) {
                    state.newest.remove(&found.block);
                }
            }
        }
        tags.write_back(lower)?;
        lower.flush_all()?;
        let mut state = self.state();
        // Blocks that were written again are in sections below this number.
        let after = state.first + state.slots.len() as u64;
        state.freed.push_back((end, after));
        while state.first < end {
            let Some(slot) = state.slots.pop_front() else { break };
            state.first += 1;
            // A concurrent reader may hold the section for a moment longer. The limit includes this
            // memory, and fresh memory costs a fault a page.
            if let Ok(section) = Arc::try_unwrap(slot.section)
                && state.spare.len() + state.slots.len() < self.window
            {
                state.spare.push(section.image.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
        }
        Ok(())
    }

    /// Runs of blocks that are contiguous on the disk and in their section.
    fn runs<'b>(&self, batch: &'b [JournaledBlock]) -> impl Iterator<Item = &'b [JournaledBlock]> {
        let (spb, geometry) = (self.geometry.block_sectors(), self.geometry);
        let mut rest = batch;
        std::iter::from_fn(move || {
            let JournaledBlock { block, location: Location { section, entry }, .. } = *rest.first()?;
            let most = geometry.place(block * spb).sectors / spb;
            let follows = |(found, nth): &(&JournaledBlock, u64)| {
                let at = usize::try_from(*nth).unwrap_or(usize::MAX);
                found.block == block + nth
                    && found.location == Location { section, entry: entry.saturating_add(at) }
            };
            let n = rest.iter().zip(0..most).take_while(follows).count();
            let (run, others) = rest.split_at(n.max(1));
            rest = others;
            Some(run)
        })
    }

    /// Writes blocks from their sections to their places, all of them together.
    fn copy(
        &self,
        lower: &mut dyn LowerDisks,
        tags: &TagCache,
        made: &mut Vec<u8>,
        batch: &[JournaledBlock],
    ) -> StepResult {
        let (shape, tag_size) = (self.geometry.section(), self.geometry.tag_size());
        made.clear();
        for found in batch {
            shape.restore(&mut found.section.image_mut(), found.location.entry);
        }
        let mut sections: Vec<&Arc<Section>> = batch.iter().map(|found| &found.section).collect();
        sections.sort_unstable_by_key(|section| Arc::as_ptr(section));
        sections.dedup_by_key(|section| Arc::as_ptr(section));
        let images: Vec<_> = sections.iter().map(|section| section.image()).collect();
        let image = |of: &Arc<Section>| {
            let nth = sections.binary_search_by_key(&Arc::as_ptr(of), |section| Arc::as_ptr(section));
            nth.ok().and_then(|nth| images.get(nth))
        };
        let (mut parts, mut of_tags) = (Vec::new(), Vec::new());
        for run in self.runs(batch) {
            let Some((first, image)) = run.first().and_then(|first| Some((first, image(&first.section)?)))
            else {
                continue;
            };
            let BlockLocation { data: at, tag, .. } =
                self.geometry.place(first.block * self.geometry.block_sectors());
            let entries = first.location.entry..first.location.entry + run.len();
            parts.push((at, shape.restored(image, entries.clone())));
            let start = made.len();
            entries.for_each(|entry| made.extend_from_slice(shape.tag(image, entry, tag_size)));
            of_tags.push((tag, start..made.len()));
        }
        lower.write_all(Side::Data, &parts)?;
        of_tags.into_iter().try_for_each(|(at, range)| tags.write(lower, at, &made[range]))
    }
}
