//! Pieces that the accelerator crypts, or this thread for it.

use std::ops::Range;
use std::time::Instant;

use underseal_device::Buffer;

use super::super::Queue;
use super::super::jobs::{FinishedJob, OfferOutcome, OfferedJob};
use super::StepOutcome;
use crate::engine::ReturnedJob;
use crate::piece::CryptoFailure;
use crate::slot::SlotStage;
use crate::stats::{CryptoSite, nanos};

impl Queue {
    /// Hands a piece to the engine.
    pub(super) fn start_jobs(&mut self, index: u32, mut buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        if let (false, Some(shared)) = (slot.op.reads(), &slot.shared) {
            shared.bytes.copy_to(shared.offset(slot.piece.at), &mut buffer[slot.piece.range()]);
            if shared.bytes.is_lost() {
                return self.fail(index, buffer, CryptoFailure::Lost.into());
            }
        }
        slot.since = self.now;
        slot.stage = SlotStage::Engine { buffer, next: slot.piece.range().start, out: 0, failed: None };
        self.jobs.line_up(index);
        self.feed_engine();
        StepOutcome::Pending
    }

    /// Submits what the engine takes.
    fn feed_engine(&mut self) {
        // What is done here for the engine goes on at once, perhaps to its next piece: that comes back to this loop.
        if self.jobs.feed() {
            while let Some(index) = self.jobs.first() {
                if !self.feed(index) {
                    break;
                }
            }
            self.jobs.fed();
        }
    }

    /// Submits the next job of the slot that is first in line. False when it has to wait.
    fn feed(&mut self, index: u32) -> bool {
        let slot = self.slots.get(index);
        let (piece, encrypts) = (slot.piece, !slot.op.reads());
        let (Some(volume), Some(engine)) = (self.epochs.volume(slot.epoch), self.mapping.engine()) else {
            return false;
        };
        let SlotStage::Engine { buffer, next, out, .. } = &mut slot.stage else { return false };
        let end = piece.range().end;
        match self.jobs.offer(&**engine, &self.post, volume, &piece, (index, encrypts), (buffer, *next)) {
            OfferOutcome::Full => return false,
            OfferOutcome::Taken(to) => {
                (*next, *out) = (to, *out + 1);
                if to == end {
                    self.jobs.leave();
                }
            }
            OfferOutcome::Refused => {
                // Nothing of it is out.
                let rest = std::mem::replace(next, end)..end;
                self.jobs.leave();
                self.redo(index, rest);
                self.piece_crypted(index);
            }
        }
        true
    }

    /// The engine has answered.
    pub(in super::super) fn job_over(&mut self, returned: ReturnedJob) {
        let Some(engine) = self.mapping.engine() else { return };
        let Some(FinishedJob { out: OfferedJob { slot: index, range, .. }, result }) =
            self.jobs.returned(&**engine, returned)
        else {
            return;
        };
        match result {
            Ok(memory) => {
                if let SlotStage::Engine { buffer, .. } = &mut self.slots.get(index).stage {
                    buffer[range].copy_from_slice(&memory);
                }
                self.post.stats.did(CryptoSite::Engine);
                self.jobs.free(memory);
            }
            Err(()) => self.redo(index, range),
        }
        self.job_done(index);
        self.feed_engine();
    }

    /// Gives up jobs that have stalled, and asks an engine again that was full.
    pub(in super::super) fn check_jobs(&mut self) {
        if self.jobs.is_idle() {
            return;
        }
        let now = Instant::now();
        while let Some(engine) = self.mapping.engine()
            && let Some(OfferedJob { slot, range, .. }) = self.jobs.stalled(&**engine, now)
        {
            self.redo(slot, range);
            self.job_done(slot);
        }
        self.feed_engine();
    }

    /// Does a job's crypto in this thread.
    fn redo(&mut self, index: u32, range: Range<usize>) {
        let slot = self.slots.get(index);
        let (piece, reads) = (slot.piece, slot.op.reads());
        let Some(volume) = self.epochs.volume(slot.epoch) else { return };
        if let SlotStage::Engine { buffer, failed, .. } = &mut slot.stage {
            let done = if reads {
                piece.open(volume, buffer, range, &[])
            } else {
                piece.seal(volume, buffer, range, &mut [])
            };
            *failed = failed.take().or(done.err());
        }
        self.post.stats.did(CryptoSite::EngineRetry);
    }

    fn job_done(&mut self, index: u32) {
        if let SlotStage::Engine { out, .. } = &mut self.slots.get(index).stage {
            *out -= 1;
        }
        self.piece_crypted(index);
    }

    /// Goes on when all jobs of a piece are done.
    fn piece_crypted(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let end = slot.piece.range().end;
        let SlotStage::Engine { next, out: 0, failed, .. } = &mut slot.stage else { return };
        if *next < end {
            return;
        }
        let failed = failed.take();
        let Some(buffer) = slot.stage.take() else { return };
        self.post.stats.crypto.record(nanos(slot.since.elapsed()), 1);
        let reads = slot.op.reads();
        let step = match failed {
            Some(refused) => {
                let error = self.broken(reads, refused);
                self.fail(index, buffer, error)
            }
            None if reads => {
                slot.stage = SlotStage::Ready(Some(buffer));
                slot.bring(&slot.piece);
                self.advance(index)
            }
            None => self.encrypted(index, buffer),
        };
        self.went_on(index, step);
    }
}
