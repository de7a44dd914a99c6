//! The adaptive policy: inline while the queue keeps up; idle workers take the surplus.
//!
//! ```text
//!   backlog:  [ next | ... | ... | last ]     cost = measured time of all of it on this thread
//!                 |                  |
//!           this thread        idle workers, while the cost is above the watermark;
//!                              tasks that no worker has begun are taken back
//! ```
//!
//! The watermark is twice the measured time in which a worker begins a task: work that this thread
//! would reach sooner is not worth a wakeup. On a busy machine workers begin late, so little is
//! handed over; on an idle one they begin soon. A [trial](trial) finds out whether sharing pays
//! beyond that, and each trial starts with the shortest time.

#[cfg(test)]
mod tests;
mod trial;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use self::trial::Trial;
use crate::slot::RequestClass;
use crate::stats::{QueueStats, nanos};
use crate::workers::Task;

/// The limits of the watermark, whatever was measured.
const LEAST: u64 = 20_000;
const MOST: u64 = 10_000_000;
/// The time in which a worker begins a task, before it is measured: half of the least watermark.
const SOON: u64 = LEAST / 2;
/// A piece that takes less, in nanoseconds, is done at once without a backlog: handing it over
/// would take as long.
const TRIFLE: u64 = 2_500;
/// Of this many trifles, one is measured.
const MEASURED: u32 = 64;
/// The smallest part of a request that is shared, in bytes.
const SMALLEST_PART: u64 = 64 << 10;

pub(super) struct Adaptive {
    /// Slots whose next piece can be encrypted or decrypted at once.
    backlog: VecDeque<BacklogEntry>,
    bytes: u64,
    /// The backlog's cost in nanoseconds.
    cost: u64,
    /// The slot that this thread works on.
    running: Option<u32>,
    /// The lower device does not answer reads at once: their crypto cannot begin before.
    reads_block: bool,
    reads: Costs,
    writes: Costs,
    /// The time in which an idle worker begins a task, in nanoseconds.
    reaction: u64,
    trial: Trial,
    /// Tasks with workers.
    away: usize,
    /// Set while the queue is idle: since when.
    idle: Option<Instant>,
    /// The number of trifles so far.
    trifles: u32,
}

/// A slot in the backlog.
#[derive(Clone, Copy)]
pub(super) struct BacklogEntry {
    pub(super) index: u32,
    pub(super) class: RequestClass,
    pub(super) len: u64,
    /// The estimated time on this thread, in nanoseconds.
    cost: u64,
    /// The request can be divided into parts.
    divides: bool,
}

/// The next action for the backlog.
pub(super) enum BacklogPlan {
    /// This thread does the piece.
    Do(BacklogEntry),
    /// A worker does the piece; if no worker can, this thread does.
    Give(BacklogEntry),
    /// The request is divided into parts of this many bytes, which replace it in the backlog.
    Divide(BacklogEntry, u64),
}

/// The facts beside the backlog that a plan depends on.
pub(super) struct Outlook<F> {
    pub(super) now: Instant,
    /// Bytes that have moved on so far.
    pub(super) moved: u64,
    /// Slots for parts are free.
    pub(super) spare_parts: bool,
    /// Whether a worker can take one more task, by the number of tasks with workers.
    pub(super) has_room: F,
}

/// Powers of two of lengths, up to 4 GiB.
const CLASSES: usize = 33;

/// Nanoseconds a byte, by the power of two of the length; 0: not measured yet.
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
            reaction: SOON,
            trial: Trial::new(),
            away: 0,
            idle: None,
            trifles: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Sets the slot that this thread works on, and returns the previous one.
    pub(super) fn at(&mut self, index: Option<u32>) -> Option<u32> {
        std::mem::replace(&mut self.running, index)
    }

    pub(super) fn is_running(&self, index: u32) -> bool {
        self.running == Some(index)
    }

    /// The number of the queue's tasks with workers, which delay the next one.
    pub(super) fn away(&self) -> usize {
        self.away
    }

    /// Counts a task that was given to a worker.
    pub(super) fn gave(&mut self) {
        self.away += 1;
    }

    /// Notes whether the lower device answered a read at once.
    pub(super) fn saw_read(&mut self, blocked: bool) {
        self.reads_block = blocked;
    }

    /// True when a read may begin at once: the lower device answers later, so there is no crypto to
    /// share yet.
    pub(super) fn reads_block(&self) -> bool {
        self.reads_block
    }

    /// Notes that a worker returned a task.
    pub(super) fn surplus_over(&mut self, task: &Task, now: Instant) {
        self.away -= 1;
        self.rests(now);
        if task.follows {
            // The task waited for the one before it, so its delay says nothing about the worker.
            return;
        }
        self.reacted(nanos(task.started.saturating_duration_since(task.given)));
    }

    /// Notes that a task was taken back before a worker began it.
    pub(super) fn took_back(&mut self, task: &Task) {
        self.away -= 1;
        self.reacted(nanos(task.given.elapsed()));
    }

    /// Notes the end of a piece, after which the queue may be idle.
    pub(super) fn rests(&mut self, now: Instant) {
        self.idle = (self.backlog.is_empty() && self.away == 0).then_some(now);
    }

    /// Notes how long this thread took for a piece.
    pub(super) fn took(&mut self, class: RequestClass, len: u64, time: u64) {
        self.costs(class).took(len, time);
    }

    /// True when a request is done at once: the backlog is empty, and handing the request over
    /// would take as long. One in [`MEASURED`] is measured, in the backlog.
    pub(super) fn is_trifle(&mut self, class: RequestClass, len: u64) -> bool {
        let alone = self.backlog.is_empty() && self.away == 0;
        if !alone || self.costs(class).known(len).is_none_or(|cost| cost >= TRIFLE) {
            return false;
        }
        // The request's time is not idle time.
        self.idle = None;
        !self.is_one_of_many()
    }

    /// True when the time of this piece is to be measured: rarely for trifles, since measuring
    /// takes time.
    pub(super) fn is_measured(&mut self, piece: &BacklogEntry) -> bool {
        piece.cost >= TRIFLE || self.backlog.is_empty() || self.is_one_of_many()
    }

    fn is_one_of_many(&mut self) -> bool {
        self.trifles = self.trifles.wrapping_add(1);
        self.trifles.is_multiple_of(MEASURED)
    }

    /// Adds a slot to the backlog. True: the statistics are to be updated.
    pub(super) fn join(
        &mut self,
        now: Instant,
        index: u32,
        class: RequestClass,
        len: u64,
        divides: bool,
    ) -> bool {
        if let Some(since) = self.idle.take() {
            self.trial.idle(now.saturating_duration_since(since));
        }
        let cost = self.costs(class).of(len);
        let divides = divides && len >= 2 * SMALLEST_PART;
        self.backlog.push_back(BacklogEntry { index, class, len, cost, divides });
        self.bytes += len;
        self.cost += cost;
        self.cost > LEAST
    }

    /// Returns the next action; `None` without a backlog. While the cost of all pieces behind the
    /// first is above the watermark, the last ones go to idle workers.
    pub(super) fn plan(&mut self, outlook: &Outlook<impl Fn(usize) -> bool>) -> Option<BacklogPlan> {
        let first = self.backlog.front().copied()?;
        let surplus = self.surplus();
        if self.cost > LEAST && (surplus.is_some() || first.divides) {
            let shares = self.shares(outlook.now, outlook.moved);
            let ours = self.costs(first.class).of(first.len);
            // A busy worker begins its next task at once.
            let watermark = if self.away > 0 { LEAST } else { self.watermark() };
            let can_give = shares && (outlook.has_room)(self.away);
            if can_give
                && self.cost.saturating_sub(ours) > watermark
                && let Some(last) = surplus.and_then(|nth| self.backlog.remove(nth))
            {
                self.leave(&last);
                return Some(BacklogPlan::Give(last));
            }
            let alone = self.backlog.len() == 1;
            if can_give && alone && ours > watermark && first.divides && outlook.spare_parts {
                self.backlog.pop_front();
                self.leave(&first);
                // Enough parts to make up for workers that begin late.
                return Some(BacklogPlan::Divide(first, (first.len / 4).max(SMALLEST_PART)));
            }
        }
        self.backlog.pop_front();
        self.leave(&first);
        Some(BacklogPlan::Do(first))
    }

    /// The last piece behind the first that takes longer than handing it over.
    fn surplus(&self) -> Option<usize> {
        /// The number of pieces that are looked at.
        const LAST: usize = 8;
        let mut behind = (1..self.backlog.len()).rev().take(LAST);
        behind.find(|nth| self.backlog[*nth].cost >= TRIFLE)
    }

    /// Whether sharing is better than working alone. Called while there is work to share.
    fn shares(&mut self, now: Instant, moved: u64) -> bool {
        let (before, shares) = (self.trial.is_sharing(), self.trial.shares(now, moved));
        if shares && !before {
            // Workers may begin sooner by now.
            self.reaction = SOON;
        }
        shares
    }

    fn leave(&mut self, slot: &BacklogEntry) {
        self.bytes -= slot.len;
        self.cost -= slot.cost;
    }

    pub(super) fn show(&self, stats: &QueueStats) {
        stats.backlog_requests.store(self.backlog.len() as u64, Relaxed);
        stats.backlog_bytes.store(self.bytes, Relaxed);
        stats.backlog_nanos.store(self.cost, Relaxed);
        stats.watermark_nanos.store(self.watermark(), Relaxed);
    }

    fn reacted(&mut self, time: u64) {
        self.reaction = (self.reaction * 7 + time.min(MOST)) / 8;
    }

    fn watermark(&self) -> u64 {
        (self.reaction * 2).clamp(LEAST, MOST)
    }

    fn costs(&mut self, class: RequestClass) -> &mut Costs {
        if class == RequestClass::Read { &mut self.reads } else { &mut self.writes }
    }
}

impl Costs {
    fn class(len: u64) -> usize {
        (len.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    /// The estimated time of a piece, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate"
    )]
    fn of(&self, len: u64) -> u64 {
        // 2 GB/s before the first measurement.
        const UNKNOWN: f32 = 0.5;
        let class = Self::class(len);
        let known = |class: &usize| self.0[*class] > 0.0;
        let nearest = (0..=class).rev().find(known).or_else(|| (class..CLASSES).find(known));
        (nearest.map_or(UNKNOWN, |class| self.0[class]) * len as f32) as u64
    }

    /// As `of`, if pieces of about this length were measured.
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
