//! Pieces in the hands of an accelerator.
//!
//! A piece becomes one job, or several where the engine takes only so many sectors at a time. A job that fails or stalls
//! is done again in software. When the engine is full, pieces wait here in the order they came.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underseal_device::{Arena, Buffer};
use underseal_volume::Volume;

use crate::engine::{Accelerator, Job, JobId, ReturnedJob};
use crate::piece::Piece;
use crate::post::QueueInbox;

/// Jobs of one queue at a time.
const MOST: u32 = 1024;
/// When others have filled the engine, it is asked again after so long.
const RETRY: Duration = Duration::from_micros(100);
/// Of so many failures in a row one is told in the log.
const TOLD: u64 = 1000;

#[derive(Default)]
pub(super) struct Jobs {
    /// Their memory. It is not the requests': an engine may never give it back.
    arena: Option<Arena>,
    table: Vec<Entry>,
    unused: Vec<u32>,
    /// Slots of which not all jobs are submitted, in order.
    waiting: VecDeque<u32>,
    /// The line is being worked off further up.
    feeding: bool,
    out: usize,
    /// When the engine last took or answered a job, or began to be waited for.
    moved: Option<Instant>,
    /// It has been given up until it takes a job again.
    stuck: bool,
    failures: u64,
}

struct Entry {
    use_of: u32,
    job: Option<OfferedJob>,
}

/// A job at the engine.
pub(super) struct OfferedJob {
    pub(super) slot: u32,
    /// Where its bytes are in the request's memory.
    pub(super) range: Range<usize>,
    deadline: Instant,
}

/// What the engine did with the next job of a piece.
pub(super) enum OfferOutcome {
    /// It has the bytes up to here.
    Taken(usize),
    /// It is to be asked again later.
    Full,
    /// This thread does the rest of the piece.
    Refused,
}

/// A job that came back in time.
pub(super) struct FinishedJob {
    pub(super) out: OfferedJob,
    /// Its memory, to be [freed](Jobs::free).
    pub(super) result: Result<Buffer, ()>,
}

impl Jobs {
    pub(super) fn new(arena: Option<Arena>) -> Self {
        Self { arena, ..Self::default() }
    }

    fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.as_mut()?.alloc(len)
    }

    pub(super) fn free(&mut self, memory: Buffer) {
        if let Some(arena) = &mut self.arena {
            arena.free(memory);
        }
    }

    /// When to look after the engine at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.out == 0 {
            return (!self.waiting.is_empty()).then(|| Instant::now() + RETRY);
        }
        self.table.iter().filter_map(|entry| Some(entry.job.as_ref()?.deadline)).min()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.out == 0 && self.waiting.is_empty()
    }

    /// A slot's piece is for the engine.
    pub(super) fn line_up(&mut self, index: u32) {
        if self.waiting.is_empty() && !self.feeding {
            self.moved = Some(Instant::now());
        }
        self.waiting.push_back(index);
    }

    /// The slot whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        self.waiting.front().copied()
    }

    /// All of the first slot's piece is with the engine, or never will be.
    pub(super) fn leave(&mut self) {
        self.waiting.pop_front();
    }

    /// Whether nobody works off the line yet; the caller does from now on, and [ends](Jobs::fed) it.
    pub(super) fn feed(&mut self) -> bool {
        !std::mem::replace(&mut self.feeding, true)
    }

    pub(super) fn fed(&mut self) {
        self.feeding = false;
    }

    /// Offers the engine the next job of the first slot's piece: its bytes from `next` on, as many as it takes.
    pub(super) fn offer(
        &mut self,
        engine: &dyn Accelerator,
        home: &Arc<QueueInbox>,
        volume: &Arc<Volume>,
        piece: &Piece,
        (slot, encrypts): (u32, bool),
        (bytes, next): (&[u8], usize),
    ) -> OfferOutcome {
        let sector = volume.segments()[piece.segment].sector_size().bytes();
        let most = engine.max_sectors().map_or(usize::MAX, |n| n.max(1).saturating_mul(sector));
        let range = next..piece.range().end.min(next.saturating_add(most));
        let is_stuck = self.is_stuck(engine.patience());
        // Jobs that are out bring memory back. If an engine keeps it all for ever, this thread does the crypto.
        let no_room = if self.out == 0 { OfferOutcome::Refused } else { OfferOutcome::Full };
        let Some(mut memory) = self.alloc(range.len()) else { return no_room };
        let Some(id) = self.reserve() else {
            self.free(memory);
            return no_room;
        };
        memory.copy_from_slice(&bytes[range.clone()]);
        let place = (piece.segment, piece.sector(next));
        let job = Job::new(id, encrypts, volume.clone(), place, memory, home.clone());
        // Before it is submitted: it may come back at once.
        let now = Instant::now();
        let end = range.end;
        self.table[id.number as usize].job =
            Some(OfferedJob { slot, range, deadline: now + engine.patience() });
        self.out += 1;
        if let Err(job) = engine.submit(job) {
            self.over(id);
            if let Some(memory) = job.into_buffer() {
                self.free(memory);
            }
            self.stuck = is_stuck;
            if !is_stuck {
                return OfferOutcome::Full;
            }
            self.tell(engine, "it takes no jobs");
            return OfferOutcome::Refused;
        }
        (self.moved, self.stuck) = (Some(now), false);
        OfferOutcome::Taken(end)
    }

    /// The engine has answered. None: too late; the request went on without it.
    pub(super) fn returned(
        &mut self,
        engine: &dyn Accelerator,
        returned: ReturnedJob,
    ) -> Option<FinishedJob> {
        let ReturnedJob { id, buffer, result } = returned;
        self.moved = Some(Instant::now());
        let Some(out) = self.over(id) else {
            self.free(buffer);
            return None;
        };
        let result = match result {
            Ok(()) => {
                self.failures = 0;
                Ok(buffer)
            }
            Err(why) => {
                self.tell(engine, &why);
                self.free(buffer);
                Err(())
            }
        };
        Some(FinishedJob { out, result })
    }

    /// Gives up a job that has stalled, if there is one.
    pub(super) fn stalled(&mut self, engine: &dyn Accelerator, now: Instant) -> Option<OfferedJob> {
        let late = |entry: &Entry| entry.job.as_ref().is_some_and(|job| job.deadline <= now);
        let (number, entry) = (0..).zip(&self.table).find(|(_, entry)| late(entry))?;
        let out = self.over(JobId { number, use_of: entry.use_of })?;
        self.tell(engine, "it stalled");
        Some(out)
    }

    fn reserve(&mut self) -> Option<JobId> {
        if self.unused.is_empty() && self.table.len() < MOST as usize {
            self.unused.push(u32::try_from(self.table.len()).ok()?);
            self.table.push(Entry { use_of: 0, job: None });
        }
        let number = self.unused.pop()?;
        Some(JobId { number, use_of: self.table[number as usize].use_of })
    }

    /// True when an engine that has none of our jobs has refused all for too long, and since.
    fn is_stuck(&self, patience: Duration) -> bool {
        let waited = || self.moved.is_some_and(|moved| moved.elapsed() >= patience);
        self.out == 0 && (self.stuck || waited())
    }

    /// Ends a job. None: it has been given up before.
    fn over(&mut self, id: JobId) -> Option<OfferedJob> {
        let entry = self.table.get_mut(id.number as usize).filter(|entry| entry.use_of == id.use_of)?;
        let job = entry.job.take()?;
        entry.use_of = entry.use_of.wrapping_add(1);
        self.unused.push(id.number);
        self.out -= 1;
        Some(job)
    }

    fn tell(&mut self, engine: &dyn Accelerator, why: &str) {
        if self.failures.is_multiple_of(TOLD) {
            log::warn!("{} failed a job: {why}; it is done in software", engine.name());
        }
        self.failures += 1;
    }
}
