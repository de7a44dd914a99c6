//! A step that cannot be written, because the disk is full or fails: what was written of it becomes
//! old again.
//!
//! What arrived lies where there is room for it, so its old form fits there too. What did not is
//! not touched.

use super::bytes::Bytes;
use super::engine::Engine;
use super::work::{self, Made};
use super::{Protection, Step};
use crate::{Result, storage};

/// What is compared and written back at once.
const BLOCK: usize = 4096;

impl Engine<'_> {
    /// Puts the old bytes back of all pieces up to the one in `made`, which failed, and takes the
    /// step back.
    ///
    /// # Errors
    /// `Io`: the step is under way still, and is to be recovered.
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

    /// Records that the step is not under way.
    ///
    /// # Errors
    /// The ledger's.
    pub(super) fn stand_back(&mut self, step: &Step) -> Result<()> {
        if step.protection == Protection::None { Ok(()) } else { self.record(step.before()) }
    }

    /// Writes what a piece was where it is something else now.
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
