//! A rotating disk: one head, a platter that turns, and a scheduler that decides the next request.
//!
//! The time at which the head stands over a byte recurs with every turn: a track is as many bytes
//! as pass in one. From where the head is, the wait for a byte is its distance along the tracks, in
//! time, within a turn. So a request that follows directly is free when it arrives in time, and a
//! request that arrives too late costs the rest of a turn.

use super::disk::{DiskCookie, DiskRequest, Ends};
use super::profile::Rotating;
use super::{DiskCounters, nanos, transfer};
use underseal_device::IoKind;

pub(super) struct RotatingState {
    disk: Rotating,
    size: u64,
    /// The time of a turn, in nanoseconds.
    turn: u64,
    head: Head,
    /// The end of the current operation.
    free_at: u64,
    /// Waiting requests, in the order of their arrival.
    waiting: Vec<Waiting>,
    /// Flushes that wait for earlier writes, with the number of the first request after them.
    flushes: Vec<(DiskCookie, u64)>,
    /// The number of bytes of `waiting` that are acknowledged already.
    cached: u64,
    sequence: u64,
    last_write: u64,
}

/// The place of the head.
struct Head {
    /// The last byte that it passed,
    at: u64,
    /// and the time.
    passed: u64,
    /// Whether the head continues reading into the drive's buffer.
    reads_on: bool,
}

struct Waiting {
    /// `None` when the request was acknowledged from the cache.
    cookie: Option<DiskCookie>,
    sequence: u64,
    write: bool,
    offset: u64,
    len: u64,
    came: u64,
}

impl RotatingState {
    pub(super) fn new(disk: Rotating, size: u64) -> Self {
        Self {
            disk,
            size: size.max(1),
            turn: 60_000_000_000 / u64::from(disk.rpm.max(1)),
            head: Head { at: 0, passed: 0, reads_on: false },
            free_at: 0,
            waiting: Vec::new(),
            flushes: Vec::new(),
            cached: 0,
            sequence: 0,
            last_write: 0,
        }
    }

    pub(super) fn submit(
        &mut self,
        now: u64,
        DiskRequest { kind, offset, len, durable }: DiskRequest,
        cookie: DiskCookie,
        ends: &mut Ends,
        counters: &mut DiskCounters,
    ) {
        self.advance(now, ends, counters);
        self.sequence += 1;
        let sequence = self.sequence;
        let overhead = nanos(self.disk.command_time);
        let write = match kind {
            IoKind::Read => false,
            IoKind::Write | IoKind::Zero => true,
            IoKind::Flush => {
                self.flushes.push((cookie, sequence));
                return self.end_flushes(now, ends);
            }
            // Without any work of the disk.
            IoKind::Discard | IoKind::Prefetch => return ends.set(cookie, now.saturating_add(overhead)),
        };
        let cached =
            kind == IoKind::Write && !durable && self.cached.saturating_add(len) <= self.disk.write_cache;
        if cached {
            self.cached += len;
            ends.set(cookie, now.saturating_add(overhead).saturating_add(transfer(len, self.disk.link_rate)));
        }
        let cookie = (!cached).then_some(cookie);
        self.waiting.push(Waiting { cookie, sequence, write, offset, len, came: now });
        // Later requests change nothing for a disk that serves in the order of arrival.
        let in_order =
            self.disk.scheduler.is_none() && self.disk.queue_depth <= 1 && self.disk.write_cache == 0;
        self.advance(if in_order { u64::MAX } else { now }, ends, counters);
    }

    /// The time at which the head starts the next waiting request.
    pub(super) fn next_dispatch(&self) -> Option<u64> {
        let first = self.waiting.first()?.came;
        let window = self.disk.scheduler.filter(|_| first >= self.free_at).map_or(0, |s| nanos(s.window));
        Some(first.saturating_add(window).max(self.free_at))
    }

    /// Processes all operations that begin by `now`.
    pub(super) fn advance(&mut self, now: u64, ends: &mut Ends, counters: &mut DiskCounters) {
        while let Some(at) = self.next_dispatch().filter(|&at| at <= now) {
            self.dispatch(at, ends, counters);
        }
    }

    fn dispatch(&mut self, at: u64, ends: &mut Ends, counters: &mut DiskCounters) {
        let Some(index) = self.choose() else { return };
        let first = self.waiting.remove(index);
        let end = self.run_end(&first);
        self.free_at = self.serve(at, first.came < self.free_at, &first, end - first.offset, counters);
        counters.busy += std::time::Duration::from_nanos(self.free_at - at);
        if first.write {
            self.last_write = self.free_at;
        }
        let mut reached = first.offset + first.len;
        self.done(&first, at, end - reached, ends);
        while reached < end {
            let Some(next) = self.adjoining(&first, reached) else { break };
            let next = self.waiting.remove(next);
            reached += next.len;
            counters.merges += 1;
            self.done(&next, at, end - reached, ends);
        }
        self.end_flushes(at, ends);
    }

    /// The next of the waiting requests: the first at or after the head, or the first of all, among
    /// those that may be chosen.
    fn choose(&self) -> Option<usize> {
        let mut commands = self.disk.queue_depth.max(1);
        let all = self.disk.scheduler.is_some();
        let candidates = self.waiting.iter().enumerate().filter(|(_, w)| {
            // The drive's cache holds requests besides its commands.
            let counts = !all && w.cookie.is_some();
            let chosen = !counts || commands > 0;
            commands -= u32::from(counts && chosen);
            chosen
        });
        candidates.min_by_key(|(_, w)| (w.offset < self.head.at, w.offset)).map(|(index, _)| index)
    }

    /// Returns the end of the run that begins with `first`, merged as far as the scheduler does.
    fn run_end(&self, first: &Waiting) -> u64 {
        let mut end = first.offset + first.len;
        let Some(scheduler) = self.disk.scheduler else { return end };
        while let Some(next) = self.adjoining(first, end).map(|next| &self.waiting[next])
            && end - first.offset + next.len <= scheduler.max_merge
            && next.len > 0
        {
            end += next.len;
        }
        end
    }

    fn adjoining(&self, first: &Waiting, end: u64) -> Option<usize> {
        self.waiting.iter().position(|w| w.offset == end && w.write == first.write)
    }

    /// Ends a request of the run that was begun at `at`, when the head has `rest` bytes of the run
    /// left.
    fn done(&mut self, request: &Waiting, at: u64, rest: u64, ends: &mut Ends) {
        let rest = transfer(rest, self.disk.media_rate);
        match request.cookie {
            Some(cookie) => ends.set(cookie, self.free_at.saturating_sub(rest).max(at)),
            None => self.cached -= request.len,
        }
    }

    fn end_flushes(&mut self, now: u64, ends: &mut Ends) {
        let Self { flushes, waiting, .. } = self;
        let end = self.last_write.max(now);
        flushes.retain(|&(cookie, sequence)| {
            let waits = waiting.iter().any(|w| w.write && w.sequence < sequence);
            if !waits {
                ends.set(cookie, end);
            }
            waits
        });
    }

    /// Moves the head over `len` bytes from `first.offset`. Returns the end time. With `busy`, it
    /// arrived before the end of the previous request.
    fn serve(&mut self, at: u64, busy: bool, first: &Waiting, len: u64, counters: &mut DiskCounters) -> u64 {
        let rate = self.disk.media_rate;
        let (offset, end) = (first.offset, first.offset + len);
        let ready = if busy { at } else { at.saturating_add(nanos(self.disk.command_time)) };
        let Head { at: head, passed, reads_on } = self.head;
        let ahead = transfer(self.disk.read_ahead, rate);
        if !first.write && reads_on && (head..=head + self.disk.read_ahead).contains(&offset) {
            let reached = passed.saturating_add(transfer(end - head, rate));
            if at <= passed.saturating_add(ahead) || end <= head + self.disk.read_ahead {
                // The head stopped when the buffer was full.
                let passed = reached.max(at.saturating_sub(ahead));
                self.head = Head { at: end, passed, reads_on };
                return ready.max(reached);
            }
        }
        let ready = ready.saturating_add(self.seek(head.abs_diff(offset)));
        // The distance along the tracks in time, minus the elapsed time: modulo a turn, that is the
        // wait.
        let place = i128::from(transfer(offset, rate)) - i128::from(transfer(head, rate));
        let wait = (place - i128::from(ready) + i128::from(passed)).rem_euclid(i128::from(self.turn.max(1)));
        let wait = u64::try_from(wait).unwrap_or(0);
        counters.seeks += u64::from(offset != head || wait > 0);
        let over = ready.saturating_add(wait).saturating_add(transfer(len, rate));
        self.head = Head { at: end, passed: over, reads_on: !first.write && self.disk.read_ahead > 0 };
        over
    }

    /// Returns the head's time for a distance in bytes.
    fn seek(&self, distance: u64) -> u64 {
        if transfer(distance, self.disk.media_rate) < self.turn {
            return 0;
        }
        let (shortest, longest) = (self.disk.track_seek, self.disk.full_seek);
        #[expect(clippy::cast_precision_loss, reason = "a share of the stroke")]
        let share = (distance as f64 / self.size as f64).min(1.0).sqrt();
        nanos(shortest + longest.saturating_sub(shortest).mul_f64(share))
    }
}
