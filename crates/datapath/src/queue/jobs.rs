//! Pieces in the hands of an accelerator.
//!
//! A piece becomes one job, or several where the engine takes only so many sectors at a time. A job that fails or stalls
//! is done again in software. When the engine is full, pieces wait here in the order they came.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use underseal_cipher::InOutBuf;
use underseal_device::{Arena, Buffer};

use super::Queue;
use super::piece::Piece;
use super::run::Step;
use crate::engine::{Job, JobId, Returned};
use crate::stats::Did;

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
    table: Vec<Place>,
    unused: Vec<u32>,
    /// Slots of which not all jobs are submitted, in order.
    waiting: VecDeque<u32>,
    /// [`Queue::feed_engine`] is at work further up.
    feeding: bool,
    out: usize,
    /// When the engine last took or answered a job, or began to be waited for.
    moved: Option<Instant>,
    /// It has been given up until it takes a job again.
    stuck: bool,
    failures: u64,
}

struct Place {
    use_of: u32,
    job: Option<Out>,
}

/// A job at the engine.
struct Out {
    slot: u32,
    range: Range<usize>,
    deadline: Instant,
}

impl Jobs {
    pub(super) fn new(arena: Option<Arena>) -> Self {
        Self { arena, ..Self::default() }
    }

    fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.as_mut()?.alloc(len)
    }

    fn free(&mut self, memory: Buffer) {
        if let Some(arena) = &mut self.arena {
            arena.free(memory);
        }
    }

    /// When to look after the engine at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.out == 0 {
            return (!self.waiting.is_empty()).then(|| Instant::now() + RETRY);
        }
        self.table.iter().filter_map(|place| Some(place.job.as_ref()?.deadline)).min()
    }

    fn reserve(&mut self) -> Option<JobId> {
        if self.unused.is_empty() && self.table.len() < MOST as usize {
            self.unused.push(u32::try_from(self.table.len()).ok()?);
            self.table.push(Place { use_of: 0, job: None });
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
    fn over(&mut self, id: JobId) -> Option<Out> {
        let place = self.table.get_mut(id.number as usize).filter(|place| place.use_of == id.use_of)?;
        let job = place.job.take()?;
        place.use_of = place.use_of.wrapping_add(1);
        self.unused.push(id.number);
        self.out -= 1;
        Some(job)
    }
}

impl Queue {
    /// Hands a piece to the engine.
    pub(super) fn start_jobs(&mut self, index: u32, piece: &Piece) -> Step {
        let slot = self.slots.get(index);
        slot.since = self.now;
        (slot.jobs_at, slot.jobs_out) = (piece.range.start, 0);
        if self.jobs.waiting.is_empty() && !self.jobs.feeding {
            self.jobs.moved = Some(Instant::now());
        }
        self.jobs.waiting.push_back(index);
        self.feed_engine();
        Step::Pending
    }

    /// Submits what the engine takes.
    fn feed_engine(&mut self) {
        // What is done here for the engine goes on at once, perhaps to its next piece: that comes back to this loop.
        if !std::mem::replace(&mut self.jobs.feeding, true) {
            while let Some(&index) = self.jobs.waiting.front() {
                if !self.feed(index) {
                    break;
                }
            }
            self.jobs.feeding = false;
        }
    }

    /// Submits the next job of the slot that is first in line. False when it has to wait.
    fn feed(&mut self, index: u32) -> bool {
        let slot = self.slots.get(index);
        let (Some(volume), Some(engine)) = (&self.volume, self.mapping.engine()) else { return false };
        let Some(piece) = Piece::of(volume, slot) else { return false };
        let segment = piece.segment(volume);
        let sector = segment.sector_size().bytes();
        let from = slot.jobs_at;
        let most = engine.max_sectors().map_or(usize::MAX, |n| n.max(1).saturating_mul(sector));
        let range = from..piece.range.end.min(from.saturating_add(most));
        let cipher = segment.cipher(piece.at + (from - piece.range.start) as u64);
        let Some((_, number)) = cipher else { return false };
        let encrypts = !slot.job.reads();
        let is_stuck = self.jobs.is_stuck(engine.patience());
        let Some(mut memory) = self.jobs.alloc(range.len()) else { return self.no_room(index, &piece) };
        let Some(id) = self.jobs.reserve() else {
            self.jobs.free(memory);
            return self.no_room(index, &piece);
        };
        if let Some(buffer) = &slot.buffer {
            memory.copy_from_slice(&buffer[range.clone()]);
        }
        let home = self.post.clone();
        let job = Job::new(id, encrypts, volume.clone(), (piece.segment, number), memory, home);
        // Before it is submitted: it may come back at once.
        let now = Instant::now();
        let out = Out { slot: index, range: range.clone(), deadline: now + engine.patience() };
        self.jobs.table[id.number as usize].job = Some(out);
        self.jobs.out += 1;
        if let Err(job) = engine.submit(job) {
            self.jobs.over(id);
            if let Some(memory) = job.into_buffer() {
                self.jobs.free(memory);
            }
            self.jobs.stuck = is_stuck;
            if is_stuck {
                self.tell("it takes no jobs");
                self.do_without_engine(index, &piece);
            }
            return is_stuck;
        }
        (self.jobs.moved, self.jobs.stuck) = (Some(now), false);
        let slot = self.slots.get(index);
        slot.jobs_at = range.end;
        slot.jobs_out += 1;
        if range.end == piece.range.end {
            self.jobs.waiting.pop_front();
        }
        true
    }

    /// Jobs that are out bring memory back. If an engine keeps it all for ever, this thread does the crypto.
    fn no_room(&mut self, index: u32, piece: &Piece) -> bool {
        let alone = self.jobs.out == 0;
        if alone {
            self.do_without_engine(index, piece);
        }
        alone
    }

    /// Does in this thread what the engine has not taken of a piece. Nothing of it is out.
    fn do_without_engine(&mut self, index: u32, piece: &Piece) {
        self.jobs.waiting.pop_front();
        let slot = self.slots.get(index);
        let rest = slot.jobs_at..piece.range.end;
        slot.jobs_at = piece.range.end;
        self.redo(index, rest);
        self.piece_crypted(index);
    }

    /// The engine has answered.
    pub(super) fn job_over(&mut self, returned: Returned) {
        let Returned { id, buffer, result } = returned;
        self.jobs.moved = Some(Instant::now());
        let Some(Out { slot: index, range, .. }) = self.jobs.over(id) else {
            // It came too late; the request went on without it.
            return self.jobs.free(buffer);
        };
        match result {
            Ok(()) => {
                if let Some(to) = &mut self.slots.get(index).buffer {
                    to[range].copy_from_slice(&buffer);
                }
                self.post.stats.did(Did::Engine);
                self.jobs.failures = 0;
            }
            Err(why) => {
                self.tell(&why);
                self.redo(index, range);
            }
        }
        self.jobs.free(buffer);
        self.job_done(index);
        self.feed_engine();
    }

    /// Gives up jobs that have stalled, and asks an engine again that was full.
    pub(super) fn check_jobs(&mut self) {
        if self.jobs.out == 0 && self.jobs.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        for number in 0..u32::try_from(self.jobs.table.len()).unwrap_or(0) {
            let place = &self.jobs.table[number as usize];
            if place.job.as_ref().is_some_and(|job| job.deadline <= now) {
                let id = JobId { number, use_of: place.use_of };
                if let Some(Out { slot, range, .. }) = self.jobs.over(id) {
                    self.tell("it stalled");
                    self.redo(slot, range);
                    self.job_done(slot);
                }
            }
        }
        self.feed_engine();
    }

    /// Does a job's crypto in this thread.
    fn redo(&mut self, index: u32, range: Range<usize>) {
        let slot = self.slots.get(index);
        let Some(volume) = &self.volume else { return };
        let (Some(piece), Some(buffer)) = (Piece::of(volume, slot), &mut slot.buffer) else { return };
        let segment = piece.segment(volume);
        let cipher = segment.cipher(piece.at + (range.start - piece.range.start) as u64);
        let Some((cipher, sector)) = cipher else { return };
        let data = InOutBuf::from(&mut buffer[range]);
        if slot.job.reads() {
            cipher.decrypt(sector, data)
        } else {
            cipher.encrypt(sector, data)
        }
        self.post.stats.did(Did::EngineRetry);
    }

    fn tell(&mut self, why: &str) {
        if self.jobs.failures.is_multiple_of(TOLD)
            && let Some(engine) = self.mapping.engine()
        {
            log::warn!("{} failed a job: {why}; it is done in software", engine.name());
        }
        self.jobs.failures += 1;
    }

    fn job_done(&mut self, index: u32) {
        self.slots.get(index).jobs_out -= 1;
        self.piece_crypted(index);
    }

    /// Goes on when all jobs of a piece are done.
    fn piece_crypted(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let Some(piece) = self.volume.as_ref().and_then(|volume| Piece::of(volume, slot)) else { return };
        if slot.jobs_out > 0 || slot.jobs_at < piece.range.end {
            return;
        }
        let latency = crate::stats::nanos(slot.since.elapsed());
        self.post.stats.crypto.record(latency, 1);
        if slot.job.reads() {
            self.advance(index, piece.len);
            self.run(index);
        } else {
            let step = self.encrypted(index);
            self.went_on(index, step);
        }
    }
}
