//! Durability: at a flush, after a time, and at the end.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use underseal_device::IoKind;

use super::journal::Journal;
use super::lower::{LowerDisks, Side, StepResult, may_wait};
use super::{Core, lock};
use crate::WriteMode;

impl Core {
    /// Makes all earlier writes durable.
    pub(crate) fn flush(&self, lower: &mut dyn LowerDisks) -> StepResult {
        may_wait(lower)?;
        self.check(IoKind::Flush, 0)?;
        if self.is_read_only() {
            return Ok(());
        }
        let done = match (&self.journal, self.mode) {
            (Some(journal), _) => journal.flush(lower),
            (None, WriteMode::Inline) => lower.flush(Side::Data),
            (None, _) => self.flush_places(lower),
        };
        self.last(done)?;
        // A concurrent failure in another thread may concern writes that this flush covers.
        self.check(IoKind::Flush, 0)
    }

    pub(super) fn flush_places(&self, lower: &mut dyn LowerDisks) -> StepResult {
        self.cache.write_back(lower)?;
        lower.flush_all()
    }

    /// True when [`Core::tend`] has work that other threads would have to wait for.
    pub(crate) fn wants_tending(&self) -> bool {
        let wants = || self.journal.as_ref().map_or_else(|| self.cache.is_crowded(), Journal::wants_tending);
        self.failed.get().is_none() && wants()
    }

    /// Periodic work: writes full sections, copies blocks back, makes old writes durable.
    pub(crate) fn tend(&self, lower: &mut dyn LowerDisks) -> StepResult {
        if self.is_read_only() {
            return Ok(());
        }
        self.check(IoKind::Write, 0)?;
        let done = if let Some(journal) = &self.journal {
            let is_old =
                journal.waits_since().is_some_and(|since| since.elapsed() >= self.settings.commit_time);
            let committed = if is_old { journal.flush(lower) } else { Ok(()) };
            committed.and_then(|()| journal.tend(lower, &self.cache))
        } else if let Some(regions) = &self.regions {
            let is_crowded = self.cache.is_crowded();
            let written = if is_crowded { self.cache.write_back(lower) } else { Ok(()) };
            written.and_then(|()| regions.sweep(lower, &self.cache, self.settings.bitmap_time))
        } else {
            self.age(lower)
        };
        self.last(done)
    }

    /// Writes tags after a time, or when they leave too little room: so a killed process, without a
    /// power cut, loses few.
    fn age(&self, lower: &mut dyn LowerDisks) -> StepResult {
        let is_due = {
            let mut aged = lock(&self.aged);
            let is_due = aged.elapsed() >= Duration::from_secs(1) || self.cache.is_crowded();
            if is_due {
                *aged = Instant::now();
            }
            is_due
        };
        if is_due && !self.cache.are_written() { self.cache.write_back(lower) } else { Ok(()) }
    }

    /// Leaves the volume clean. No other thread uses it any more; later requests fail.
    pub(crate) fn close(&self, lower: &mut dyn LowerDisks) -> StepResult {
        if self.is_read_only() {
            return Ok(());
        }
        if self.closed.load(SeqCst) && self.failed.get().is_none() {
            return Ok(());
        }
        // The next opening must notice failed writes: the volume is not marked clean.
        self.check(IoKind::Flush, 0)?;
        self.closed.store(true, SeqCst);
        let done = self.close_all(lower);
        self.last(done)
    }

    fn close_all(&self, lower: &mut dyn LowerDisks) -> StepResult {
        if let Some(journal) = &self.journal {
            journal.empty(lower, &self.cache)?;
            journal.clear(lower)?;
        }
        if self.mode == WriteMode::Inline {
            return lower.flush(Side::Data);
        }
        self.flush_places(lower)?;
        self.close_superblock(lower)
    }
}
