//! Discarded blocks: their tags record it, and the data device may drop their data.

use std::ops::Range;

use underseal_device::IoKind;

use super::Core;
use super::journal::Journal;
use super::lower::{LowerDisks, Side, StepResult, may_wait};
use crate::{DISCARDED, WriteMode};

impl Core {
    pub(crate) fn takes_discards(&self) -> bool {
        self.discards && self.hash.is_some() && !self.is_read_only() && self.mode != WriteMode::Inline
    }

    /// Discards blocks; afterwards they read as anything, without an error.
    pub(crate) fn discard(&self, lower: &mut dyn LowerDisks, offset: u64, len: u64) -> StepResult {
        if !self.takes_discards() || len == 0 {
            return Ok(());
        }
        self.check_writable(IoKind::Discard, offset)?;
        may_wait(lower)?;
        let block = self.geometry.block_size() as u64;
        let blocks = offset / block..(offset + len) / block;
        self.record_growth(lower, &blocks)?;
        let _claim = self.claim(lower, blocks.clone(), true)?;
        match (&self.journal, &self.regions) {
            (Some(journal), _) => {
                let ranges = self.discard_torn(lower, journal, blocks)?;
                journal.apart(&ranges, || self.discard_places(lower, &ranges))
            }
            (None, Some(regions)) => {
                let sectors = self.sectors(&blocks);
                self.last(regions.begin(lower, &sectors))?;
                let done = self.discard_places(lower, &[blocks]);
                regions.end(&sectors);
                done
            }
            (None, None) => self.discard_places(lower, &[blocks]),
        }
    }

    /// A tag across two sectors could be torn in place. Blocks with one are zeroed through the
    /// journal; the other ranges are returned.
    fn discard_torn(
        &self,
        lower: &mut dyn LowerDisks,
        journal: &Journal,
        blocks: Range<u64>,
    ) -> StepResult<Vec<Range<u64>>> {
        let (tag_size, spb) = (self.geometry.tag_size() as u64, self.geometry.block_sectors());
        if 512 % tag_size == 0 {
            return Ok(vec![blocks]);
        }
        let zeros = vec![0; self.geometry.block_size()];
        let (mut ranges, mut start) = (Vec::new(), blocks.start);
        for block in blocks.clone() {
            if self.geometry.place(block * spb).tag % 512 + tag_size <= 512 {
                continue;
            }
            let mut tag = vec![0; self.geometry.tag_size()];
            self.hash.iter().for_each(|hash| hash.make(block * spb, &zeros, &mut tag));
            self.write_to_journal(lower, journal, &(block..block + 1), &zeros, &tag)?;
            ranges.push(start..block);
            start = block + 1;
        }
        ranges.push(start..blocks.end);
        ranges.retain(|range| !range.is_empty());
        Ok(ranges)
    }

    fn discard_places(&self, lower: &mut dyn LowerDisks, ranges: &[Range<u64>]) -> StepResult {
        let spb = self.geometry.block_sectors();
        let runs: Vec<_> = ranges.iter().flat_map(|blocks| self.runs(blocks.clone())).collect();
        for run in &runs {
            let place = self.geometry.place(run.start * spb);
            let len = self.count(run) * self.geometry.tag_size();
            self.last(self.cache.fill(lower, place.tag, len, DISCARDED))?;
        }
        // The data of discarded blocks may be anything, so the tags must record the discard first.
        self.last(self.cache.write_back(lower).and_then(|()| lower.flush(Side::Meta)))?;
        for run in &runs {
            let place = self.geometry.place(run.start * spb);
            lower.discard(place.data, (run.end - run.start) * spb * 512)?;
        }
        Ok(())
    }
}
