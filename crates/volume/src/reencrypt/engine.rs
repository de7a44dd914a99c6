//! The order of a step's writes and syncs.
//!
//! The rows of a step, as in `commit` and `commit_locked`. Each row is on stable storage before the
//! next row that relies on it:
//! ```text
//!   row                          none    checksum    journal    source (the old bytes stay)
//!    1  read old bytes            x       x           x          x
//!    2  to the area               -       hashes      bytes      -       synced
//!    3  record: in progress       -       x           x          x       the ledger syncs
//!    4  write new bytes           x       x           x          x
//!    5  sync the data             -       x           x          x
//!    6  record: done              -       x           x          x       the ledger syncs
//! ```
//! Checksums cover bytes that survive a crash: bytes written by users without a sync are synced
//! with row 2. Row 1 of the next step, and the crypt of its row 4, run at the same time as rows 2
//! to 6: they read no byte that these rows write. Without protection, rows 5 and 6 come once, when
//! the reencryption stops. In some ledgers, row 6 of the last step is the end of the reencryption,
//! so the range of the last step is held until no reader repeats the step.
//!
//! The ledger's lock is kept from row 3 to row 6. While another program holds the lock, the users
//! of the range get the range back until the lock is free, and the step begins again at row 1: so
//! they never wait for another program.
//!
//! Before the first step, the ledger secures its record: after a failed sync, reads still return
//! the new record, but the disk may have the previous record, which relies on the area as it is.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use super::work::{self, Made, Work};
use super::{Claim, Foreground, Ledger, Pace, Progress, Protection, Step};
use crate::{Error, ErrorKind, Result, Target, storage};

/// The pause between attempts at a lock that another program holds.
const LOCKED: Duration = Duration::from_millis(100);
/// The pause between messages about the wait for a lock.
const TELL: Duration = Duration::from_secs(10);

/// How a reencryption is carried out.
#[derive(Debug, Clone)]
pub struct Options {
    /// The number of threads that crypt.
    pub workers: usize,
    /// The approximate number of a step's bytes in memory at once; the next step, which is made
    /// meanwhile, has as many. Longer steps are read twice.
    pub memory: u64,
    /// Recovery leaves blocks that are neither old nor new as they are, instead of an error. Their
    /// contents are lost.
    pub keep_lost: bool,
}

impl Default for Options {
    /// Returns as many threads as processors, and 64 MiB. Blocks are lost only on request.
    fn default() -> Self {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        Self { workers, memory: 64 << 20, keep_lost: false }
    }
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every byte is new, and the ledger has finished.
    Finished,
    /// The foreground stopped it between two steps.
    Stopped,
}

/// Resumes a reencryption: recovers an interrupted step, then takes step after step. `data` is the
/// device of the volume's bytes.
///
/// # Errors
/// `BadLayout` when the ledger's plan or progress is invalid; `BadOption` when the data has another
/// ledger, too; `TooSmall` when the device ends before the data does; `BadHeader` when a step
/// cannot be recovered; the kinds of the ledger and the foreground; `Io`, `Memory`. After each of
/// these errors the reencryption can be resumed: a step that could not be written was undone, or is
/// recovered next time. Only without protection may an error, or a crash, lose data.
pub fn run(
    data: &(dyn Target + Sync),
    ledger: &mut dyn Ledger,
    foreground: &dyn Foreground,
    options: &Options,
) -> Result<Outcome> {
    let (plan, progress) = (ledger.plan().clone(), ledger.progress());
    plan.check()?;
    plan.check_progress(progress)?;
    let size = storage::size(data)?;
    if size < plan.end() {
        let context = format!("the data ends at byte {}, but its device at byte {size}", plan.end());
        return Err(Error::new(ErrorKind::TooSmall, context));
    }
    ledger.allows(data)?;
    let work = Work::new(data, &plan, options);
    let mut engine = Engine { work, ledger, foreground, options, progress, unkept: false };
    engine.recover()?;
    // Earlier writes may be in memory only.
    engine.settle(plan.protection)?;
    let outcome = engine.steps();
    let kept = engine.keep();
    let outcome = outcome.and_then(|outcome| kept.map(|()| outcome))?;
    if outcome == Outcome::Finished {
        engine.ledger.finish(data)?;
    }
    Ok(outcome)
}

/// A reencryption that is carried out.
pub(super) struct Engine<'a> {
    pub(super) work: Work<'a>,
    pub(super) ledger: &'a mut dyn Ledger,
    pub(super) foreground: &'a dyn Foreground,
    pub(super) options: &'a Options,
    /// Ahead of the ledger's progress if nothing is protected.
    pub(super) progress: Progress,
    /// Steps without protection are done, but not recorded yet.
    unkept: bool,
}

/// A step whose range is claimed.
struct Claimed<'a> {
    step: Step,
    claim: Box<dyn Claim + 'a>,
    made: Made,
}

impl<'a> Engine<'a> {
    fn steps(&mut self) -> Result<Outcome> {
        let mut ahead = None;
        let mut spare = Made::default();
        while let Some(step) = self.work.plan.step(self.progress) {
            if self.foreground.pace(step.done, self.work.plan.size - step.done) == Pace::Stop {
                return Ok(Outcome::Stopped);
            }
            let mut this = match ahead.take() {
                Some(ready) => ready,
                None => {
                    // The wait may have changed the allowed length of the step.
                    let step = self.next(self.progress).unwrap_or(step);
                    self.begin(step, std::mem::take(&mut spare))?
                }
            };
            let committed = self.commit_beside_next(&mut this, std::mem::take(&mut spare))?;
            let Claimed { claim, made, .. } = this;
            drop(claim);
            spare = made;
            match committed {
                Committed::Step { next } => ahead = next,
                Committed::LockedOut(e) => self.wait_for_lock(e)?,
            }
        }
        Ok(Outcome::Finished)
    }

    /// Returns the next step, as short as the foreground wants it.
    fn next(&self, progress: Progress) -> Option<Step> {
        self.work.plan.step_within(progress, self.foreground.longest())
    }

    /// Claims a step's range and makes its first piece, or all of it.
    fn begin(&self, step: Step, mut made: Made) -> Result<Claimed<'a>> {
        let claim = self.foreground.claim(step.range.clone())?;
        if self.work.is_one_piece(&step) {
            self.work.make(&step, 0..step.len(), &mut made)?;
        }
        Ok(Claimed { step, claim, made })
    }

    /// Commits a step. If the foreground allows it, the next step is made meanwhile, and returned.
    fn commit_beside_next(&mut self, this: &mut Claimed<'a>, mut made: Made) -> Result<Committed<'a>> {
        let (work, foreground) = (self.work, self.foreground);
        let next = self.next(this.step.finished()).filter(|next| work.is_one_piece(next));
        // A range that cannot be claimed now is claimed in its turn, where the error occurs again.
        let next = next.filter(|_| foreground.claims_ahead()).and_then(|step| {
            let claim = foreground.claim(step.range.clone()).ok()?;
            Some((step, claim))
        });
        let Some((step, claim)) = next else { return self.commit(this) };
        let (committed, made) = thread::scope(|scope| {
            let make = || work.make(&step, 0..step.len(), &mut made).map(|()| made);
            // Without a thread the step is made in its turn.
            let making = thread::Builder::new().spawn_scoped(scope, make).ok();
            let committed = self.commit(this);
            (committed, making.map(work::joined).transpose())
        });
        Ok(match committed? {
            Committed::Step { .. } => {
                let next = made?.map(|made| Claimed { step, claim, made });
                Committed::Step { next }
            }
            locked_out => locked_out,
        })
    }

    /// Carries out rows 2 to 6, and handles a step that fails in one of them.
    fn commit(&mut self, this: &mut Claimed<'a>) -> Result<Committed<'a>> {
        // Row 2. The step has not begun: an error leaves everything unchanged.
        let is_recorded = this.step.protection != Protection::None;
        let protected = self.protect(&this.step, &mut this.made);
        match protected.and_then(|()| if is_recorded { self.ledger.lock() } else { Ok(()) }) {
            Err(e) if e.kind() == ErrorKind::Locked => return Ok(Committed::LockedOut(e)),
            ready => ready?,
        }
        let committed = self.commit_locked(this);
        self.ledger.unlock();
        committed.map(|()| Committed::Step { next: None })
    }

    /// Carries out rows 3 to 6.
    fn commit_locked(&mut self, this: &mut Claimed<'a>) -> Result<()> {
        let Claimed { step, claim, made } = this;
        // Row 3. After an error it may be recorded or not. Nothing is written yet, so it has to be
        // undone.
        if step.protection != Protection::None
            && !self.ledger.repeats(step)
            && let Err(e) = self.record(step.started())
        {
            if e.kind() == ErrorKind::Locked {
                return Err(e);
            }
            let undone = self.stand_back(step);
            return Err(not_undone(undone, step, &**claim, e));
        }
        // Row 4.
        if let Err(e) = self.write(step, made) {
            let undone = self.undo(step, made);
            return Err(not_undone(undone, step, &**claim, e));
        }
        // From here on only recovery can find out the state of the disk.
        self.conclude(step, &**claim).inspect_err(|_| claim.give_up())
    }

    /// Row 2: writes the step's protection to the area, on stable storage before the record that
    /// relies on it.
    fn protect(&mut self, step: &Step, made: &mut Made) -> Result<()> {
        if step.guard_len(step.len()) == 0 {
            return Ok(());
        }
        for piece in self.work.pieces(step) {
            if !self.work.is_one_piece(step) {
                self.work.make(step, piece.clone(), made)?;
            }
            self.ledger.write_area(step.guard_len(piece.start), &made.guard)?;
        }
        if self.foreground.writes() {
            self.settle(step.protection)?;
        }
        self.ledger.sync_area()
    }

    /// Bytes with checksums must not be lost: the checksums would not match the older bytes.
    fn settle(&self, protection: Protection) -> Result<()> {
        if let Protection::Checksum { .. } = protection { storage::sync(self.work.data) } else { Ok(()) }
    }

    /// Row 4: writes the new bytes to their place. A step that is longer than the memory for it is
    /// read again.
    fn write(&mut self, step: &Step, made: &mut Made) -> Result<()> {
        for piece in self.work.pieces(step) {
            if !self.work.is_one_piece(step) {
                self.work.make(step, piece.clone(), made)?;
            }
            storage::write(self.work.data, step.target + piece.start, &made.new)?;
        }
        Ok(())
    }

    /// Rows 5 and 6; then the users get the step's range back.
    fn conclude(&mut self, step: &Step, claim: &dyn Claim) -> Result<()> {
        if step.protection == Protection::None {
            self.unkept = true;
        } else {
            storage::sync(self.work.data)?;
            self.record(step.finished())?;
            self.ledger.unlock();
        }
        self.progress = step.finished();
        claim.relay(self.work.plan.volume(self.progress)?)
    }

    /// Carries out rows 5 and 6 of all steps without protection.
    fn keep(&mut self) -> Result<()> {
        if !self.unkept {
            return Ok(());
        }
        storage::sync(self.work.data)?;
        self.record(self.progress)
    }

    /// Records progress.
    pub(super) fn record(&mut self, progress: Progress) -> Result<()> {
        self.patiently(|this| this.ledger.record(progress))
    }

    /// Returns when the ledger's lock was free, or `held` after a stop of the reencryption. No
    /// range is claimed meanwhile.
    pub(super) fn wait_for_lock(&mut self, held: Error) -> Result<()> {
        let mut told: Option<Instant> = None;
        while !self.foreground.is_stopped() {
            if told.is_none_or(|told| told.elapsed() > TELL) {
                self.foreground.waits_for_lock();
                told = Some(Instant::now());
            }
            thread::sleep(LOCKED);
            match self.ledger.lock() {
                Err(e) if e.kind() == ErrorKind::Locked => {}
                free => {
                    self.ledger.unlock();
                    return free;
                }
            }
        }
        Err(held)
    }

    /// Carries out an action that begins with the ledger's lock. While another program holds the
    /// lock, the users of the step's range wait; after a stop of the reencryption, the lock is an
    /// error.
    pub(super) fn patiently<T>(&mut self, mut act: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        loop {
            match act(self) {
                Err(e) if e.kind() == ErrorKind::Locked && !self.foreground.is_stopped() => {
                    self.foreground.waits_for_lock();
                    thread::sleep(LOCKED);
                }
                done => return done,
            }
        }
    }
}

/// The outcome of committing a step.
enum Committed<'a> {
    /// The step is done. The next step is made, if that was possible meanwhile.
    Step { next: Option<Claimed<'a>> },
    /// Another program holds the ledger's lock: the step has not begun.
    LockedOut(Error),
}

/// Returns why a step failed. If it could not be undone either, its range is unusable until it is
/// recovered.
fn not_undone(undone: Result<()>, step: &Step, claim: &dyn Claim, why: Error) -> Error {
    if undone.is_ok() {
        return why;
    }
    claim.give_up();
    if step.protection != Protection::None {
        return why;
    }
    let Range { start, end } = step.range;
    why.within(format_args!("bytes {start} to {end} of the volume are lost, since nothing protected them"))
}
