//! The journal's blocks go to their places, in runs, and its sections become free.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::super::lock;
use super::super::lower::{LowerDisks, Side, StepResult, may_wait};
use super::super::tag_cache::TagCache;
use super::{Journal, JournaledBlock};
use crate::BlockLocation;

/// Blocks whose places are looked up at a time.
const BATCH: usize = 512;
/// The most that is written to a place with one request, in bytes.
const RUN: usize = 1 << 20;

impl Journal {
    /// Sees to it that there is room, by copying back what is there if need be.
    pub(in crate::core) fn make_room(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        may_wait(lower)?;
        let mut memory = lock(&self.copies);
        let is_full = {
            let state = self.state();
            state.slots.len() == self.window && state.slots.back().is_some_and(|last| last.closed)
        };
        if is_full { self.copy_back(lower, tags, &mut memory, false) } else { Ok(()) }
    }

    /// Writes what is full, and copies back if it is time for that.
    pub(in crate::core) fn tend(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        self.write_full(lower)?;
        let in_use = self.state().slots.iter().filter(|slot| slot.closed).count();
        if in_use < self.watermark {
            return Ok(());
        }
        let mut memory = lock(&self.copies);
        self.copy_back(lower, tags, &mut memory, false)
    }

    /// Copies everything to its place. Whoever calls sees to it that nothing is put meanwhile.
    pub(in crate::core) fn empty(&self, lower: &mut dyn LowerDisks, tags: &TagCache) -> StepResult {
        let mut memory = lock(&self.copies);
        self.copy_back(lower, tags, &mut memory, true)
    }

    /// Does something to places while nobody copies blocks there. `forget`: what the journal has for them is void.
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
        memory: &mut (Vec<u8>, Vec<u8>),
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
        // Whatever was written again is in a section below this number.
        let after = state.first + state.slots.len() as u64;
        state.freed.push_back((end, after));
        while state.first < end {
            let Some(slot) = state.slots.pop_front() else { break };
            state.first += 1;
            // Somebody who reads from it has it for a moment longer. Its memory was allowed for, and fresh memory costs a fault a page.
            if let Ok(section) = Arc::try_unwrap(slot.section)
                && state.spare.len() + state.slots.len() < self.window
            {
                state.spare.push(section.image.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
        }
        Ok(())
    }

    /// Blocks that follow each other on the disk.
    fn runs<'b>(&self, batch: &'b [JournaledBlock]) -> impl Iterator<Item = &'b [JournaledBlock]> {
        let (size, spb, geometry) =
            (self.geometry.block_size(), self.geometry.block_sectors(), self.geometry);
        let mut rest = batch;
        std::iter::from_fn(move || {
            let first = rest.first()?.block;
            let most = (geometry.place(first * spb).sectors / spb).min((RUN / size) as u64);
            let n = rest
                .iter()
                .zip(first..first.saturating_add(most))
                .take_while(|(found, at)| found.block == *at);
            let (run, others) = rest.split_at(n.count().max(1));
            rest = others;
            Some(run)
        })
    }

    /// Copies blocks to their places, all runs of them together.
    fn copy(
        &self,
        lower: &mut dyn LowerDisks,
        tags: &TagCache,
        (data, made): &mut (Vec<u8>, Vec<u8>),
        batch: &[JournaledBlock],
    ) -> StepResult {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        data.resize(batch.len() * size, 0);
        made.resize(batch.len() * tag_size, 0);
        let blocks = data.chunks_exact_mut(size).zip(made.chunks_exact_mut(tag_size));
        batch.iter().zip(blocks).for_each(|(found, (data, tag))| self.get(found, data, tag));
        let (mut places, mut of_tags, mut next) = (Vec::new(), Vec::new(), 0);
        for run in self.runs(batch) {
            let Some(first) = run.first() else { continue };
            let BlockLocation { data: at, tag, .. } =
                self.geometry.place(first.block * self.geometry.block_sectors());
            let end = next + run.len();
            places.push((at, next * size..end * size));
            of_tags.push((tag, next * tag_size..end * tag_size));
            next = end;
        }
        lower.write_all(Side::Data, &places, data)?;
        of_tags.into_iter().try_for_each(|(at, range)| tags.write(lower, at, &made[range]))
    }
}
