//! The regions whose tags are recalculated after a power cut: the bitmap of a running volume.
//!
//! The bit of a region is durable before anything is written there, and is cleared some time after
//! data and tags written there are durable. Only a holder of `writer` changes bits; `state` is held
//! for moments.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::lock;
use super::lower::{LowerDisks, Side, StepResult, may_wait};
use super::tag_cache::TagCache;
use crate::Bitmap;

/// The regions of a volume.
pub(super) struct Regions {
    state: Mutex<State>,
    /// Held to write the bitmap.
    writer: Mutex<()>,
}

struct State {
    /// The bitmap on the disk.
    bits: Bitmap,
    /// Regions whose tags may be wrong since the power cut.
    redo: Bitmap,
    /// The first bit of `redo` that may be set.
    redone: u64,
    /// Regions with writes since the bits were last swept.
    touched: Bitmap,
    /// The number of writes in progress, by region.
    busy: BTreeMap<u64, u32>,
    /// The time since which a bit may be cleared.
    since: Option<Instant>,
}

impl Regions {
    /// Takes a bitmap from the disk: its regions have to be recalculated.
    pub(super) fn new(bits: Bitmap) -> Self {
        let mut touched = bits.clone();
        touched.set(bits.all(), false);
        let state =
            State { redo: bits.clone(), redone: 0, bits, touched, busy: BTreeMap::new(), since: None };
        Self { state: state.into(), writer: Mutex::default() }
    }

    /// Called before sectors are written. [`Regions::end`] follows a success.
    pub(super) fn begin(&self, lower: &mut dyn LowerDisks, sectors: &Range<u64>) -> StepResult {
        if self.state().enter(sectors) {
            return Ok(());
        }
        may_wait(lower)?;
        let _writer = lock(&self.writer);
        let (regions, (at, units)) = {
            let state = self.state();
            let regions = state.bits.bits_of(sectors.clone());
            (regions.clone(), state.bits.unit_with(regions))
        };
        lower.write(Side::Meta, at, &units, true)?;
        let mut state = self.state();
        state.bits.set(regions, true);
        state.enter(sectors);
        state.since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// As [`begin`](Self::begin), without waiting. False: a bit has to be written first.
    pub(super) fn begin_now(&self, sectors: &Range<u64>) -> bool {
        self.state().enter(sectors)
    }

    /// Called after the write, or its failure.
    pub(super) fn end(&self, sectors: &Range<u64>) {
        let mut state = self.state();
        for region in state.bits.bits_of(sectors.clone()) {
            if let Some(count) = state.busy.get_mut(&region) {
                *count -= 1;
                if *count == 0 {
                    state.busy.remove(&region);
                }
            }
        }
    }

    /// Clears the bits of regions without writes, if some have been clearable for `after`.
    pub(super) fn sweep(&self, lower: &mut dyn LowerDisks, tags: &TagCache, after: Duration) -> StepResult {
        if self.state().since.is_none_or(|since| since.elapsed() < after) {
            return Ok(());
        }
        let _writer = lock(&self.writer);
        let idle = self.idle();
        tags.write_back(lower)?;
        lower.flush_all()?;
        self.clear(lower, idle)
    }

    /// The chunks of the bitmap with clearable bits, and these bits, of regions without a write in
    /// progress. From now on a write touches its regions.
    fn idle(&self) -> Vec<(Range<usize>, Vec<u8>)> {
        let chunks = self.state().bits.chunks();
        chunks.filter_map(|chunk| self.state().idle(&chunk).map(|idle| (chunk, idle))).collect()
    }

    /// Clears the bits of these regions that were not touched meanwhile.
    fn clear(&self, lower: &mut dyn LowerDisks, idle: Vec<(Range<usize>, Vec<u8>)>) -> StepResult {
        self.state().since = None;
        for (chunk, idle) in idle {
            let changed = self.state().clear(&chunk, &idle);
            if let Some((at, bytes)) = changed {
                lower.write(Side::Meta, at, &bytes, false)?;
            }
        }
        Ok(())
    }

    /// True when no tag of these sectors has to be recalculated.
    pub(super) fn is_sound(&self, sectors: &Range<u64>) -> bool {
        let state = self.state();
        !state.redo.bits_of(sectors.clone()).any(|region| state.redo.is_set(region))
    }

    /// True when no tag has to be recalculated.
    pub(super) fn is_all_sound(&self) -> bool {
        self.state().redo.dirty().next().is_none()
    }

    /// The first sectors from this one on whose tags have to be recalculated.
    pub(super) fn next_unsound(&self, sector: u64) -> Option<Range<u64>> {
        let state = self.state();
        let bit = state.redo.bits_of(sector..sector + 1).start;
        let found = state.redo.dirty_from(bit).find(|run| run.end > sector)?;
        Some(found.start.max(sector)..found.end)
    }

    /// The number of sectors from this one on whose tags have to be recalculated.
    pub(super) fn unsound_from(&self, sector: u64) -> u64 {
        self.state().redo.dirty().map(|run| run.end.saturating_sub(run.start.max(sector))).sum()
    }

    /// Notes that all tags before this sector are recalculated.
    pub(super) fn is_redone(&self, sector: u64) {
        let mut state = self.state();
        let redone = 0..state.redo.bits_of(0..sector).end;
        // The sector's region is not done, unless the sector is its first.
        let end = match state.redo.sectors_of(redone.clone()).end {
            end if end > sector => redone.end.saturating_sub(1),
            _ => redone.end,
        };
        let begin = state.redone.min(end);
        state.redo.set(begin..end, false);
        state.redone = state.redone.max(end);
        state.since.get_or_insert_with(Instant::now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Marks the regions as busy. False: a bit is missing, and nothing was changed.
    fn enter(&mut self, sectors: &Range<u64>) -> bool {
        let regions = self.bits.bits_of(sectors.clone());
        if !regions.clone().all(|region| self.bits.is_set(region)) {
            return false;
        }
        self.touched.set(regions.clone(), true);
        regions.for_each(|region| *self.busy.entry(region).or_default() += 1);
        true
    }

    /// The bits of a chunk for regions without a write in progress. `None`: the chunk has no
    /// clearable bits.
    fn idle(&mut self, chunk: &Range<usize>) -> Option<Vec<u8>> {
        self.touched.chunk_mut(chunk).fill(0);
        let mut idle = self.may_go(chunk);
        if idle.iter().all(|byte| *byte == 0) {
            return None;
        }
        let first = chunk.start as u64 * 8;
        for region in self.busy.range(first..chunk.end as u64 * 8).map(|(region, _)| region - first) {
            if let Some(byte) = usize::try_from(region / 8).ok().and_then(|at| idle.get_mut(at)) {
                *byte &= !(1 << (region % 8));
            }
        }
        Some(idle)
    }

    /// Clears the bits that are idle and untouched. Returns the chunk and its offset, if it
    /// changed.
    fn clear(&mut self, chunk: &Range<usize>, idle: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut is_changed = false;
        for ((bits, touched), idle) in
            self.bits.chunk_mut(chunk).iter_mut().zip(self.touched.chunk(chunk)).zip(idle)
        {
            let left = *bits & !(idle & !touched);
            is_changed |= left != *bits;
            *bits = left;
        }
        if self.may_go(chunk).iter().any(|byte| *byte != 0) {
            self.since.get_or_insert_with(Instant::now);
        }
        is_changed.then(|| (self.bits.chunk_offset(chunk), self.bits.chunk(chunk).to_vec()))
    }

    /// The bits of a chunk that are set only because of writes.
    fn may_go(&self, chunk: &Range<usize>) -> Vec<u8> {
        let pairs = self.bits.chunk(chunk).iter().zip(self.redo.chunk(chunk));
        pairs.map(|(bits, redo)| bits & !redo).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A metadata device that has the bitmap only.
    struct Disk(Vec<u8>);

    impl LowerDisks for Disk {
        fn may_wait(&self) -> bool {
            true
        }

        fn read(&mut self, _: Side, _: u64, _: &mut [u8]) -> StepResult {
            unreachable!("the bitmap is not read")
        }

        fn write(&mut self, _: Side, offset: u64, data: &[u8], _: bool) -> StepResult {
            self.0[usize::try_from(offset).unwrap()..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn flush(&mut self, _: Side) -> StepResult {
            Ok(())
        }

        fn flush_all(&mut self) -> StepResult {
            Ok(())
        }

        fn discard(&mut self, _: u64, _: u64) -> StepResult {
            unreachable!("nothing is discarded")
        }

        fn read_tagged(&mut self, _: u64, _: &mut [u8], _: &mut [u8]) -> StepResult {
            unreachable!("no data is read")
        }

        fn write_tagged(&mut self, _: u64, _: &[u8], _: &[u8]) -> StepResult {
            unreachable!("no data is written")
        }
    }

    /// A disk of 1 TiB with a bit for each 4 KiB: 32 MiB of bits.
    const SECTORS: u64 = 1 << 31;
    const LOG2: u32 = 3;

    #[test]
    fn a_bitmap_of_many_regions_keeps_nobody_waiting() {
        let regions = Regions::new(Bitmap::with_sectors(SECTORS, LOG2));
        let mut disk = Disk(vec![0; 32 << 20]);
        let begun = Instant::now();
        for number in 0..1000 {
            let at = number * (SECTORS / 1000);
            assert!(regions.begin(&mut disk, &(at..at + 8)).is_ok());
            regions.end(&(at..at + 8));
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "a thousand regions took {took:?}");
        // A region is written to all the while.
        assert!(regions.begin_now(&(0..8)));
        let longest = std::thread::scope(|scope| {
            let sweep = scope.spawn(|| {
                let idle = regions.idle();
                // Another region is written to during the flush.
                assert!(regions.begin_now(&(SECTORS / 1000..SECTORS / 1000 + 8)));
                assert!(regions.clear(&mut disk, idle).is_ok());
            });
            let mut longest = Duration::ZERO;
            while !sweep.is_finished() {
                let asked = Instant::now();
                drop(regions.state());
                longest = longest.max(asked.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        assert!(longest < Duration::from_millis(100), "a queue's thread waited for {longest:?}");
        let left: Vec<_> = regions.state().bits.dirty().collect();
        let second = SECTORS / 1000 / 8 * 8;
        assert_eq!(left, [0..8, second..second + 16]);
        assert!(regions.state().since.is_some());
        regions.end(&(0..8));
        regions.end(&(SECTORS / 1000..SECTORS / 1000 + 8));
        let idle = regions.idle();
        assert!(regions.clear(&mut disk, idle).is_ok());
        assert!(regions.state().bits.dirty().next().is_none() && regions.state().since.is_none());
        assert!(disk.0.iter().all(|byte| *byte == 0));
    }
}
