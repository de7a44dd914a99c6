//! Recovery of an interrupted step: its protection tells the old bytes, and the step is repeated.
//! The recovery may be interrupted, too, at any point.

use std::ops::Range;

use super::bytes::Bytes;
use super::engine::Engine;
use super::protect::Blocks;
use super::work::{self, Made};
use super::{Protection, Step};
use crate::{Error, ErrorKind, Result, storage};

impl Engine<'_> {
    /// Secures the ledger's record, and repeats the step in progress, if any.
    ///
    /// Fails with `BadHeader` when the protection does not match the bytes on disk (see
    /// [`super::Options::keep_lost`]), and with `Io`.
    pub(super) fn recover(&mut self) -> Result<()> {
        let Some(step) = self.work.plan.step(self.progress).filter(|_| self.progress.hot.is_some()) else {
            return self.patiently(|this| this.ledger.secure());
        };
        let claim = loop {
            let claim = self.foreground.claim(step.range.clone())?;
            match self.ledger.lock() {
                Err(e) if e.kind() == ErrorKind::Locked => {
                    drop(claim);
                    self.wait_for_lock(e)?;
                }
                locked => {
                    locked.inspect_err(|_| claim.give_up())?;
                    break claim;
                }
            }
        };
        let again = self.ledger.secure().and_then(|()| self.redo(&step)).and_then(|()| {
            // As in every step: the data before its record.
            storage::sync(self.work.data)?;
            self.record(step.finished())?;
            self.ledger.unlock();
            self.progress = step.finished();
            claim.relay(self.work.plan.volume(self.progress)?)
        });
        self.ledger.unlock();
        again.inspect_err(|_| claim.give_up()).map_err(|e| {
            let Range { start, end } = step.range;
            e.within(format_args!("recovery of bytes {start} to {end} of the volume"))
        })
    }

    /// Converts all of a step to its new form. Blocks that are new already are written again: after
    /// a failed sync, the bytes that are read may be in memory only.
    fn redo(&mut self, step: &Step) -> Result<()> {
        let mut made = Made::default();
        for piece in self.work.pieces(step) {
            match step.protection {
                Protection::Source => self.work.make(step, piece.clone(), &mut made)?,
                Protection::Journal => self.by_journal(step, &piece, &mut made.new)?,
                Protection::Checksum { .. } => self.by_checksums(step, &piece, &mut made)?,
                Protection::None => {
                    return Err(Error::new(ErrorKind::BadHeader, "nothing protects the interrupted step"));
                }
            }
            storage::write(self.work.data, step.target + piece.start, &made.new)?;
        }
        Ok(())
    }

    fn by_journal(&self, step: &Step, piece: &Range<u64>, new: &mut Bytes) -> Result<()> {
        new.resize(piece.end - piece.start)?;
        self.ledger.read_area(piece.start, new)?;
        let (start, work) = (step.range.start + piece.start, self.work);
        work.share(work::in_chunks(new), |(at, chunk)| {
            work.renew(start + at, chunk);
            Ok(())
        })
    }

    fn by_checksums(&self, step: &Step, piece: &Range<u64>, made: &mut Made) -> Result<()> {
        let len = piece.end - piece.start;
        made.new.resize(len)?;
        made.guard.resize(step.guard_len(len))?;
        self.ledger.read_area(step.guard_len(piece.start), &mut made.guard)?;
        storage::read_into(self.work.data, step.target + piece.start, &mut made.new)?;
        let Some(blocks) = Blocks::of(step.protection) else { return Ok(()) };
        let start = step.range.start + piece.start;
        let (work, keep_lost) = (self.work, self.options.keep_lost);
        let guards = work::chunks(&mut made.guard, work::guard_chunk(step));
        work.share(work::in_chunks(&mut made.new).zip(guards), |((at, chunk), hashes)| {
            match blocks.renew(&work, start + at, chunk, hashes) {
                Err(at) if !keep_lost => Err(lost(at)),
                _ => Ok(()),
            }
        })
    }
}

fn lost(at: u64) -> Error {
    let context = format!(
        "the block at byte {at} of the volume is neither what it was nor what it was to become: a disk that writes less than a \
         block at once tore it, or what protected it was lost; nothing was changed there. \
         \"underseal reencrypt --resume-only --keep-lost\" continues without its contents"
    );
    Error::new(ErrorKind::BadHeader, context)
}
