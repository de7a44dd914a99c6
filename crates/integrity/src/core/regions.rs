//! Where tags have to be made anew after a loss of power: the bitmap of a running volume.
//!
//! The bit of a region is durable before anything is written there, and goes when data and tags that were written there are durable, some
//! time after. Only who holds `writer` changes bits; `state` is held for moments.

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
    /// Held by who writes the bitmap.
    writer: Mutex<()>,
}

struct State {
    /// As it is on the disk.
    bits: Bitmap,
    /// Regions whose tags may be wrong since the power went.
    redo: Bitmap,
    /// Regions in which somebody wrote since the bits were last looked through.
    touched: Bitmap,
    /// Regions in which somebody writes now: how many.
    busy: BTreeMap<u64, u32>,
    /// Since when there is a bit that may go.
    since: Option<Instant>,
}

impl Regions {
    /// A bitmap as it is on the disk: what is set has to be made anew.
    pub(super) fn new(bits: Bitmap) -> Self {
        let mut touched = bits.clone();
        touched.set(bits.all(), false);
        let state = State { redo: bits.clone(), bits, touched, busy: BTreeMap::new(), since: None };
        Self { state: state.into(), writer: Mutex::default() }
    }

    /// Before sectors are written. [`Regions::end`] follows, if this is well.
    pub(super) fn begin(&self, lower: &mut dyn LowerDisks, sectors: &Range<u64>) -> StepResult {
        if self.state().enter(sectors) {
            return Ok(());
        }
        may_wait(lower)?;
        let _writer = lock(&self.writer);
        let mut bits = self.state().bits.clone();
        let regions = bits.bits_of(sectors.clone());
        bits.set(regions.clone(), true);
        let (at, unit) = bits.unit(regions);
        lower.write(Side::Meta, at, unit, true)?;
        let mut state = self.state();
        state.bits = bits;
        state.enter(sectors);
        state.since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// The same where nobody may wait. False: a bit has to be written first.
    pub(super) fn begin_now(&self, sectors: &Range<u64>) -> bool {
        self.state().enter(sectors)
    }

    /// After they were written, or not.
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

    /// Takes away the bits of regions where nobody writes, if there are any for so long.
    pub(super) fn sweep(&self, lower: &mut dyn LowerDisks, tags: &TagCache, after: Duration) -> StepResult {
        if self.state().since.is_none_or(|since| since.elapsed() < after) {
            return Ok(());
        }
        let _writer = lock(&self.writer);
        let candidates: Vec<u64> = {
            let mut state = self.state();
            let all = state.bits.all();
            state.touched.set(all.clone(), false);
            let is_idle = |region: &u64| state.may_go(*region) && !state.busy.contains_key(region);
            all.filter(is_idle).collect()
        };
        tags.write_back(lower)?;
        lower.flush_all()?;
        let bits = {
            let mut state = self.state();
            for region in candidates {
                if !state.touched.is_set(region) {
                    state.bits.set(region..region + 1, false);
                }
            }
            let is_left = state.bits.all().any(|region| state.may_go(region));
            state.since = is_left.then(Instant::now);
            state.bits.clone()
        };
        let (at, unit) = bits.unit(bits.all());
        lower.write(Side::Meta, at, unit, false)
    }

    /// True when no tag of these sectors has to be made anew.
    pub(super) fn is_sound(&self, sectors: &Range<u64>) -> bool {
        let state = self.state();
        !state.redo.bits_of(sectors.clone()).any(|region| state.redo.is_set(region))
    }

    /// The same of all sectors.
    pub(super) fn is_all_sound(&self) -> bool {
        self.state().redo.dirty().next().is_none()
    }

    /// The first sectors from this one on whose tags have to be made anew.
    pub(super) fn next_unsound(&self, sector: u64) -> Option<Range<u64>> {
        let state = self.state();
        let found = state.redo.dirty().find(|run| run.end > sector)?;
        Some(found.start.max(sector)..found.end)
    }

    /// How many sectors from this one on have tags that have to be made anew.
    pub(super) fn unsound_from(&self, sector: u64) -> u64 {
        self.state().redo.dirty().map(|run| run.end.saturating_sub(run.start.max(sector))).sum()
    }

    /// The tags of all sectors before this one are made anew.
    pub(super) fn is_redone(&self, sector: u64) {
        let mut state = self.state();
        let redone = 0..state.redo.bits_of(0..sector).end;
        // The region that the sector is in is not done, but where it begins.
        let end = match state.redo.sectors_of(redone.clone()).end {
            end if end > sector => redone.end.saturating_sub(1),
            _ => redone.end,
        };
        state.redo.set(0..end, false);
        state.since.get_or_insert_with(Instant::now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Marks the regions as busy. False: a bit is missing, and nothing was done.
    fn enter(&mut self, sectors: &Range<u64>) -> bool {
        let regions = self.bits.bits_of(sectors.clone());
        if !regions.clone().all(|region| self.bits.is_set(region)) {
            return false;
        }
        self.touched.set(regions.clone(), true);
        regions.for_each(|region| *self.busy.entry(region).or_default() += 1);
        true
    }

    /// It is set, and for no other reason than a write.
    fn may_go(&self, region: u64) -> bool {
        self.bits.is_set(region) && !self.redo.is_set(region)
    }
}
