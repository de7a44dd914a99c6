//! Reading and writing of blocks: in the journal, and in their places on the devices.

use std::ops::Range;

use super::Core;
use super::journal::Journal;
use super::lower::{LowerDisks, Side, StepResult, Stop};
use crate::WriteMode;

impl Core {
    /// Reads blocks from the journal where they are in it, and the rest from their places.
    pub(super) fn read_newest(
        &self,
        lower: &mut dyn LowerDisks,
        blocks: &Range<u64>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> StepResult {
        let found = self.journal.as_ref().map(|journal| journal.find(blocks.clone())).unwrap_or_default();
        let mut next = blocks.start;
        for known in &found {
            self.read_places(lower, next..known.block, blocks.start, data, tags)?;
            let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
            let i = self.count(&(blocks.start..known.block));
            let tag = tags.get_mut(i * tag_size..(i + 1) * tag_size).unwrap_or_default();
            if let Some(journal) = &self.journal {
                journal.get(known, &mut data[i * size..(i + 1) * size], tag);
            }
            next = known.block + 1;
        }
        self.read_places(lower, next..blocks.end, blocks.start, data, tags)
    }

    /// Reads blocks from their places. `data` and `tags` begin with the block `first`; empty
    /// `tags`: without them.
    pub(super) fn read_places(
        &self,
        lower: &mut dyn LowerDisks,
        blocks: Range<u64>,
        first: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> StepResult {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        for run in self.runs(blocks) {
            let place = self.geometry.place(run.start * self.geometry.block_sectors());
            let (from, to) = (self.count(&(first..run.start)), self.count(&(first..run.end)));
            let data = &mut data[from * size..to * size];
            let tags = tags.get_mut(from * tag_size..to * tag_size).unwrap_or_default();
            if self.mode == WriteMode::Inline {
                let mut tuples = vec![0; (to - from) * self.tuple];
                lower.read_tagged(place.data, data, &mut tuples)?;
                let pairs = tags.chunks_exact_mut(tag_size).zip(tuples.chunks_exact(self.tuple));
                pairs.for_each(|(tag, tuple)| tag.copy_from_slice(&tuple[..tag_size]));
            } else {
                lower.read(Side::Data, place.data, data)?;
                if !tags.is_empty() {
                    self.cache.read(lower, place.tag, tags)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn write_to_journal(
        &self,
        lower: &mut dyn LowerDisks,
        journal: &Journal,
        blocks: &Range<u64>,
        data: &[u8],
        tags: &[u8],
    ) -> StepResult {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        let (mut next, mut done) = (blocks.start, 0);
        while next < blocks.end {
            let put = journal.put(next, &data[done * size..], &tags[done * tag_size..]);
            next += put as u64;
            done += put;
            if put == 0 {
                if !lower.may_wait() {
                    return Err(Stop::Blocked(done * size));
                }
                self.last(journal.make_room(lower, &self.cache))?;
            }
        }
        Ok(())
    }

    pub(super) fn write_places(
        &self,
        lower: &mut dyn LowerDisks,
        blocks: Range<u64>,
        data: &[u8],
        tags: &[u8],
    ) -> StepResult {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        let first = blocks.start;
        for run in self.runs(blocks) {
            let place = self.geometry.place(run.start * self.geometry.block_sectors());
            let (from, to) = (self.count(&(first..run.start)), self.count(&(first..run.end)));
            let (data, tags) = (&data[from * size..to * size], &tags[from * tag_size..to * tag_size]);
            let written = if self.mode == WriteMode::Inline {
                let mut tuples = vec![0; (to - from) * self.tuple];
                let pairs = tags.chunks_exact(tag_size).zip(tuples.chunks_exact_mut(self.tuple));
                pairs.for_each(|(tag, tuple)| tuple[..tag_size].copy_from_slice(tag));
                lower.write_tagged(place.data, data, &tuples)
            } else {
                lower
                    .write(Side::Data, place.data, data, false)
                    .and_then(|()| self.cache.write(lower, place.tag, tags))
            };
            // Finished blocks of a run are written again with the rest of it.
            written.map_err(|stop| match stop {
                Stop::Blocked(_) => Stop::Blocked(from * size),
                failed @ Stop::Failed(_) => failed,
            })?;
        }
        Ok(())
    }

    pub(super) fn blocks(&self, offset: u64, len: usize) -> Range<u64> {
        let block = self.geometry.block_size() as u64;
        offset / block..(offset + len as u64) / block
    }

    pub(super) fn sectors(&self, blocks: &Range<u64>) -> Range<u64> {
        let spb = self.geometry.block_sectors();
        blocks.start * spb..blocks.end * spb
    }

    pub(super) fn count(&self, blocks: &Range<u64>) -> usize {
        usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(usize::MAX)
    }

    /// The parts of a range whose data and tags are contiguous on the devices.
    pub(super) fn runs(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (geometry, spb, mut next) = (self.geometry, self.geometry.block_sectors(), blocks.start);
        std::iter::from_fn(move || {
            let start = next;
            if start >= blocks.end {
                return None;
            }
            next = (start + (geometry.place(start * spb).sectors / spb).max(1)).min(blocks.end);
            Some(start..next)
        })
    }
}
