//! The adaptive policy: inline while the queue keeps up, what is more goes to idle workers.
//!
//! ```text
//!   backlog:  [ next | ... | ... | last ]     cost = what this thread will take for all of it, as measured
//!                |                  |
//!          this thread        idle workers, while the cost is above the watermark;
//!                             what none of them came to is taken back
//! ```
//!
//! The watermark is twice the time that a worker takes to come to a task, as measured: work that this thread would reach
//! sooner is not worth waking one for. On a busy machine workers come late, so little is handed over; on an idle one they
//! come soon. Whether sharing pays beyond it is [tried](trial).

mod trial;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use self::trial::Trial;
use super::piece::{Piece, Place};
use super::{Job, Kind, Queue};
use crate::stats::{Did, nanos};
use crate::workers::{Task, Work};
use crate::{Affinity, WriteOrder};

/// The watermark lies in between, whatever was measured.
const LEAST: u64 = 20_000;
const MOST: u64 = 10_000_000;
/// After so many decisions that the watermark alone has made, it is lowered, lest it stays high after the machine has
/// become idle.
const DOUBT: u32 = 64;
/// What takes less, in nanoseconds, is done at once where there is no backlog: handing it over would take as long.
const TRIFLE: u64 = 2_500;
/// Of so many trifles one is measured.
const MEASURED: u32 = 64;
/// The smallest part of a request that is shared, in bytes.
const SMALLEST_PART: u64 = 64 << 10;
/// A worker is about to be done: it is waited for so long before this thread sleeps, since waking takes as long.
const PATIENCE: Duration = Duration::from_micros(50);

pub(super) struct Adaptive {
    /// Slots whose next piece can be done at once.
    backlog: VecDeque<u32>,
    bytes: u64,
    /// Nanoseconds.
    cost: u64,
    /// The slot that this thread is at.
    running: Option<u32>,
    /// The lower device does not answer reads at once: there is nothing to share before it has.
    reads_block: bool,
    reads: Costs,
    writes: Costs,
    /// How long workers that have nothing to do take to come to a task, in nanoseconds.
    reaction: u64,
    trial: Trial,
    doubts: u32,
    /// Tasks at workers.
    away: usize,
    /// Trifles so far.
    trifles: u32,
}

/// Powers of two of lengths, up to 4 GiB.
const CLASSES: usize = 33;

/// Nanoseconds a byte, by the power of two of the length; 0: not known yet.
struct Costs([f32; CLASSES]);

impl Adaptive {
    pub(super) fn new(room: usize) -> Self {
        Self {
            backlog: VecDeque::with_capacity(room),
            bytes: 0,
            cost: 0,
            running: None,
            reads_block: false,
            reads: Costs([0.0; CLASSES]),
            writes: Costs([0.0; CLASSES]),
            reaction: LEAST,
            trial: Trial::new(),
            doubts: 0,
            away: 0,
            trifles: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    pub(super) fn is_running(&self, index: u32) -> bool {
        self.running == Some(index)
    }

    /// True when workers have a task: the next one waits for it.
    pub(super) fn has_given(&self) -> bool {
        self.away > 0
    }

    /// Notes that a worker has one more.
    pub(super) fn gave(&mut self) {
        self.away += 1;
    }

    /// Notes how the lower device answered a read.
    pub(super) fn saw_read(&mut self, blocked: bool) {
        self.reads_block = blocked;
    }

    /// Notes that a task is back.
    pub(super) fn surplus_over(&mut self, task: &Task) {
        self.away -= 1;
        if task.follows {
            // It waited for the task before it, which says nothing about the worker.
            return;
        }
        self.reacted(nanos(task.started.saturating_duration_since(task.given)));
    }

    fn reacted(&mut self, time: u64) {
        self.reaction = (self.reaction * 7 + time.min(MOST)) / 8;
        self.doubts = 0;
    }

    fn watermark(&self) -> u64 {
        (self.reaction * 2).clamp(LEAST, MOST)
    }

    /// Without the watermark work would have been handed over.
    fn doubt(&mut self) {
        self.doubts += 1;
        if self.doubts == DOUBT {
            self.doubts = 0;
            self.reaction -= self.reaction / 4;
        }
    }

    fn costs(&mut self, kind: Kind) -> &mut Costs {
        if kind == Kind::Read { &mut self.reads } else { &mut self.writes }
    }
}

impl Costs {
    fn class(len: u64) -> usize {
        (len.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// What a piece will take, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate"
    )]
    fn of(&self, len: u64) -> u64 {
        // Before anything is known: 2 GB/s.
        const UNKNOWN: f32 = 0.5;
        let class = Self::class(len);
        let known = |class: &usize| self.0[*class] > 0.0;
        let nearest = (0..=class).rev().find(known).or_else(|| (class..CLASSES).find(known));
        (nearest.map_or(UNKNOWN, |class| self.0[class]) * len as f32) as u64
    }

    /// The same, if pieces of about this length were measured.
    fn known(&self, len: u64) -> Option<u64> {
        (self.0[Self::class(len)] > 0.0).then(|| self.of(len))
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn took(&mut self, len: u64, time: u64) {
        let each = time as f32 / len.max(1) as f32;
        let mean = &mut self.0[Self::class(len)];
        *mean = if *mean == 0.0 { each } else { *mean + (each - *mean) / 8.0 };
    }
}

impl Queue {
    /// Starts a read or write: at once, or when its turn in the backlog comes.
    pub(super) fn dispatch_adaptive(&mut self, index: u32) {
        let (kind, len) = self.size_of(index);
        let cost = self.adaptive.costs(kind).known(len);
        let alone = self.adaptive.backlog.is_empty() && self.adaptive.away == 0;
        if alone && cost.is_some_and(|cost| cost < TRIFLE) {
            self.adaptive.trifles = self.adaptive.trifles.wrapping_add(1);
            if !self.adaptive.trifles.is_multiple_of(MEASURED) {
                let above = self.adaptive.running.replace(index);
                self.run(index);
                self.adaptive.running = above;
                return;
            }
        }
        self.join_backlog(index);
    }

    /// Puts a slot into the backlog, unless the lower device has to come first.
    pub(super) fn join_backlog(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.job.reads() && !slot.is_due && self.adaptive.reads_block {
            return self.run(index);
        }
        let (kind, len) = (slot.kind, slot.end - slot.at);
        slot.since = self.now;
        let cost = self.adaptive.costs(kind).of(len);
        slot.cost = cost;
        self.adaptive.backlog.push_back(index);
        self.adaptive.bytes += len;
        self.adaptive.cost += cost;
        if self.adaptive.cost > LEAST {
            self.show_backlog();
        }
    }

    /// Does the next piece of the backlog, and hands over what is too much. False when there is none.
    pub(super) fn work_on_backlog(&mut self) -> bool {
        if self.adaptive.backlog.is_empty() {
            return false;
        }
        if self.adaptive.away > 0 && self.post.has_letters() {
            // A worker that is done can have more.
            self.read_letters();
        }
        if self.adaptive.cost > LEAST {
            self.share();
        }
        let Some(index) = self.adaptive.backlog.pop_front() else {
            // All is with workers. The letters may have let others go on.
            self.settle();
            return true;
        };
        let (kind, len) = self.leave_backlog(index);
        let began = self.tick();
        let slot = self.slots.get(index);
        slot.since = began;
        self.adaptive.running = Some(index);
        let moved = self.moved;
        if slot.is_due && slot.job.reads() {
            slot.is_due = false;
            let piece = self.volume.as_ref().and_then(|volume| Piece::of(volume, slot));
            if let Some(piece) = piece {
                let step = self.decrypt_here(index, &piece);
                self.went_on(index, step);
            }
        } else {
            self.run(index);
        }
        self.adaptive.running = None;
        if self.moved - moved == len {
            let took = nanos(self.now.saturating_duration_since(began));
            self.adaptive.costs(kind).took(len, took);
        }
        self.show_backlog();
        self.settle();
        true
    }

    /// Hands the end of the backlog to idle workers while the cost of the rest is above the watermark.
    fn share(&mut self) {
        while self.adaptive.cost > LEAST {
            let Some(&first) = self.adaptive.backlog.front() else { return };
            let (kind, len) = self.size_of(first);
            let ours = self.adaptive.costs(kind).of(len);
            // A worker that is at it already comes to the next task at once.
            let watermark = if self.adaptive.away > 0 { LEAST } else { self.adaptive.watermark() };
            if self.adaptive.cost.saturating_sub(ours) <= watermark {
                let alone = self.adaptive.backlog.len() == 1;
                let divides = alone && ours > watermark && self.can_divide(first);
                if !divides {
                    self.adaptive.trial.pause();
                    self.adaptive.doubt();
                    return;
                }
                if !self.pays() {
                    return;
                }
                self.divide_first(first, len);
                continue;
            }
            if !self.pays() {
                return;
            }
            let Some(last) = self.adaptive.backlog.pop_back() else { return };
            self.leave_backlog(last);
            if !self.give_surplus(last) {
                // It is for this thread alone.
                let (_, len) = self.size_of(last);
                self.adaptive.backlog.push_front(last);
                self.adaptive.bytes += len;
                self.adaptive.cost += self.slots.get(last).cost;
                return;
            }
        }
    }

    /// There is more than the watermark: whether handing over is better than going on alone.
    fn pays(&mut self) -> bool {
        self.adaptive.trial.shares(self.now, self.moved)
            && self.mapping.workers().has_room(self.adaptive.away)
    }

    fn can_divide(&mut self, index: u32) -> bool {
        let slot = self.slots.get(index);
        let whole = slot.at == slot.start && slot.end - slot.start >= 2 * SMALLEST_PART && !slot.is_due;
        whole
            && self.spare_parts > 1
            // A write that has its place in the line keeps it as a whole.
            && !(slot.order == WriteOrder::Arrival && slot.job.changes())
            && matches!(slot.family, super::Family::Alone)
            && matches!(slot.job, Job::Read { .. } | Job::Write { .. })
    }

    /// Makes parts of a long request; they join the backlog in its place.
    fn divide_first(&mut self, index: u32, len: u64) {
        self.adaptive.backlog.pop_front();
        self.leave_backlog(index);
        // Parts enough to make up for threads that come late.
        let each = (len / 4).max(SMALLEST_PART);
        self.divide(index, each);
    }

    /// Gives a slot's next piece to a worker. False when no worker can do it.
    fn give_surplus(&mut self, index: u32) -> bool {
        let Some(volume) = &self.volume else { return false };
        let slot = self.slots.get(index);
        let Some(piece) = Piece::of(volume, slot) else { return false };
        let Place::On(device) = piece.place(volume) else { return false };
        slot.device = device;
        let work = match (slot.job.reads(), slot.is_due) {
            (true, true) => Work::Decrypt,
            (true, false) => Work::ReadAndDecrypt,
            _ if slot.order == WriteOrder::AsReady && !slot.job.is_durable() => Work::EncryptAndWrite,
            _ => Work::Encrypt,
        };
        // Without a worker it has been begun here.
        let step = self.give(index, &piece, work, Affinity::Any, true);
        self.went_on(index, step);
        true
    }

    /// Before this thread sleeps, it takes back what no worker has come to, and waits a little for one that is at work.
    /// True when something came of it.
    pub(super) fn take_surplus_back(&mut self) -> bool {
        if self.adaptive.away == 0 {
            return false;
        }
        let home = self.post.clone();
        let mine = |task: &Task| task.is_surplus && Arc::ptr_eq(&task.home, &home);
        if let Some(mut task) = self.mapping.workers().take_back(mine) {
            self.adaptive.away -= 1;
            self.adaptive.reacted(nanos(task.given.elapsed()));
            self.post.stats.did(Did::TakenBack);
            task.run(&mut self.channels);
            let index = task.slot;
            let step = self.task_result(task);
            self.went_on(index, step);
            return true;
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.post.has_letters() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn size_of(&mut self, index: u32) -> (Kind, u64) {
        let slot = self.slots.get(index);
        (slot.kind, slot.end - slot.at)
    }

    fn leave_backlog(&mut self, index: u32) -> (Kind, u64) {
        let (kind, len) = self.size_of(index);
        let cost = self.slots.get(index).cost;
        self.adaptive.bytes -= len;
        self.adaptive.cost -= cost;
        (kind, len)
    }

    fn show_backlog(&self) {
        let (stats, adaptive) = (&self.post.stats, &self.adaptive);
        stats.backlog_requests.store(adaptive.backlog.len() as u64, Relaxed);
        stats.backlog_bytes.store(adaptive.bytes, Relaxed);
        stats.backlog_nanos.store(adaptive.cost, Relaxed);
        stats.watermark_nanos.store(adaptive.watermark(), Relaxed);
    }
}
