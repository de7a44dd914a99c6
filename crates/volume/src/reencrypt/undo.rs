//! Undoing a step that cannot be written, because the disk is full or fails: the written bytes
//! become old again.
//!
//! The old form fits in the place of the bytes that arrived. The place of the other bytes is not
//! touched.

use super::bytes::Bytes;
use super::engine::Engine;
use super::work::{self, Made};
use super::{Protection, Step};
use crate::{Result, storage};

/// The number of bytes that are compared and written back at once.
const BLOCK: usize = 4096;

impl Engine<'_> {
    /// Restores the old bytes of all pieces up to the failed piece in `made`, and records the
    /// progress before the step.
    ///
    /// Fails with `Io`: then the step is still in progress, and needs recovery.
    pub(super) fn undo(&mut self, step: &Step, made: &mut Made) -> Result<()> {
        if step.protection != Protection::Source {
            let failed = made.piece.start;
            self.put_back(step, made)?;
            for piece in self.work.pieces(step).take_while(|piece| piece.start < failed) {
                made.new.resize(piece.end - piece.start)?;
                storage::read_into(self.work.data, step.target + piece.start, &mut made.new)?;
                made.piece = piece;
                self.put_back(step, made)?;
            }
            storage::sync(self.work.data)?;
        }
        self.stand_back(step)
    }

    /// Records that the step is not in progress.
    ///
    /// Fails with the errors of the ledger.
    pub(super) fn stand_back(&mut self, step: &Step) -> Result<()> {
        if step.protection == Protection::None { Ok(()) } else { self.record(step.before()) }
    }

    /// Writes a piece's old bytes to the blocks that have changed.
    fn put_back(&self, step: &Step, made: &mut Made) -> Result<()> {
        let (work, start) = (self.work, made.piece.start);
        work.share(work::in_chunks(&mut made.new), |(at, chunk)| {
            work.age(step.range.start + start + at, chunk);
            let mut here = Bytes::default();
            here.resize(chunk.len() as u64)?;
            let place = step.target + start + at;
            storage::read_into(work.data, place, &mut here)?;
            let both = chunk.chunks(BLOCK).zip(here.chunks(BLOCK)).zip((place..).step_by(BLOCK));
            both.filter(|((old, here), _)| old != here)
                .try_for_each(|((old, _), place)| storage::write(work.data, place, old))
        })
    }
}
