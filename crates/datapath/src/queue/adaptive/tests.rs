//! The adaptive policy over a model: one worker with a wakeup time, a queue that is always full,
//! and a simulated clock. The tests check counts.

use std::cell::Cell;
use std::time::Duration;

use super::*;

/// Nanoseconds after which a worker without work sleeps.
const SPINS: u64 = 50_000;

/// A machine of two processors: one for this thread, the other for a worker while no other program
/// runs.
struct Model {
    /// The time of a request, on either thread.
    each: u64,
    /// The time that a task stops this thread: the worker runs on this thread's processor.
    stops: u64,
    /// The time in which a sleeping worker begins.
    wakes: u64,
    /// The time at which the worker is done with its tasks.
    free_at: u64,
    /// The worker's tasks: times given, begun, done, and whether another task was there.
    tasks: VecDeque<(u64, u64, u64, bool)>,
}

/// The numbers of requests that this thread and the worker did.
#[derive(Debug, Default)]
struct Counts {
    here: u32,
    there: u32,
}

impl Model {
    fn new(each: u64, wakes: u64) -> Self {
        Self { each, stops: 0, wakes, free_at: 0, tasks: VecDeque::new() }
    }

    fn give(&mut self, now: u64) {
        let follows = !self.tasks.is_empty();
        let sleeps = !follows && now > self.free_at + SPINS;
        let begun = if sleeps { now + self.wakes } else { now.max(self.free_at) };
        self.free_at = begun + self.each;
        self.tasks.push_back((now, begun, self.free_at, follows));
    }

    /// As `Workers::has_room` with two threads, of which one processor is left to the queue.
    fn has_room(&self, now: u64, away: usize) -> bool {
        let waiting = self.tasks.iter().filter(|task| task.1 > now).count();
        waiting == 0 && (self.tasks.is_empty() || (away > 0 && away < 2))
    }

    /// Keeps `depth` requests of `len` bytes in flight. Counts requests that end after both
    /// alternatives have been tried.
    fn run(&mut self, adaptive: &mut Adaptive, depth: usize, len: u64) -> Counts {
        self.bursts(adaptive, depth, len, 0)
    }

    /// Sends `depth` requests at once, and the next ones when all have ended, but not earlier than
    /// `every` nanoseconds after the last ones; 0: each finished request is replaced at once.
    fn bursts(&mut self, adaptive: &mut Adaptive, depth: usize, len: u64, every: u64) -> Counts {
        // A burst has little work, so the trial takes longer.
        let (tries, ends): (u64, u64) =
            if every > 0 { (1_000_000_000, 4_000_000_000) } else { (30_000_000, 130_000_000) };
        let start = Instant::now();
        let (now, mut moved, mut flying) = (Cell::new(0u64), 0, 0);
        let (mut counts, mut sent) = (Counts::default(), false);
        while now.get() < ends {
            if every > 0 && flying == 0 {
                now.set(now.get().next_multiple_of(every));
            }
            while flying < depth && (every == 0 || !sent) {
                adaptive.join(start + Duration::from_nanos(now.get()), 0, RequestClass::Read, len, false);
                flying += 1;
                sent = flying == depth;
            }
            while self.tasks.front().is_some_and(|task| task.2 <= now.get()) {
                let Some((given, begun, _, follows)) = self.tasks.pop_front() else { break };
                adaptive.away -= 1;
                adaptive.rests(start + Duration::from_nanos(now.get()));
                if !follows {
                    adaptive.reacted(begun - given);
                }
                (flying, moved, counts.there) =
                    (flying - 1, moved + len, counts.there + u32::from(now.get() > tries));
            }
            sent &= flying > 0;
            let plan = adaptive.plan(&Outlook {
                now: start + Duration::from_nanos(now.get()),
                moved,
                spare_parts: false,
                has_room: |away| self.has_room(now.get(), away),
            });
            match plan {
                Some(BacklogPlan::Give(_)) => {
                    self.give(now.get());
                    now.set(now.get() + self.stops);
                    adaptive.gave();
                }
                Some(BacklogPlan::Do(_)) => {
                    now.set(now.get() + self.each);
                    adaptive.took(RequestClass::Read, len, self.each);
                    adaptive.rests(start + Duration::from_nanos(now.get()));
                    (flying, moved, counts.here) =
                        (flying - 1, moved + len, counts.here + u32::from(now.get() > tries));
                }
                Some(BacklogPlan::Divide(..)) => unreachable!("nothing here divides"),
                None => now.set(self.tasks.front().map_or(now.get(), |task| task.2)),
            }
        }
        counts
    }
}

#[test]
fn one_request_at_a_time_is_nobody_elses() {
    let Counts { here, there } = Model::new(8_000, 1_000).run(&mut Adaptive::new(64), 1, 65_536);
    assert!(there == 0 && here > 10_000, "{here} here, {there} there");
}

#[test]
fn an_idle_worker_gets_its_half_of_a_full_queue() {
    for each in [8_000, 16_000, 40_000] {
        for wakes in [1_000, 20_000, 60_000, 100_000] {
            for depth in [8, 32] {
                let mut adaptive = Adaptive::new(64);
                let Counts { here, there } = Model::new(each, wakes).run(&mut adaptive, depth, 65_536);
                let case =
                    format!("{each} ns each, {wakes} to wake, depth {depth}: {here} here, {there} there");
                // All epochs except those that try the worse alternative.
                assert!(there * 100 >= here * 95, "{case}");
            }
        }
    }
}

#[test]
fn a_worker_that_has_no_processor_of_its_own_is_rarely_asked() {
    for each in [4_000, 16_000, 200_000] {
        for depth in [8, 32] {
            let mut model = Model { stops: 1_000_000, ..Model::new(each, 1_000_000) };
            let Counts { here, there } = model.run(&mut Adaptive::new(64), depth, 65_536);
            let alone = 100_000_000 / each;
            assert!(
                u64::from(here) > alone * 90 / 100,
                "{each} ns each, depth {depth}: {here} of {alone}, {there}"
            );
        }
    }
}

#[test]
fn what_takes_no_longer_than_handing_it_over_stays() {
    let Counts { here, there } = Model::new(TRIFLE - 100, 1_000).run(&mut Adaptive::new(64), 32, 4_096);
    assert!(there == 0 && here > 10_000, "{here} here, {there} there");
}

#[test]
fn bursts_are_shared_whatever_lies_between_them() {
    for (each, depth) in [(50_000, 16), (200_000, 8)] {
        for every in [3_000_000, 5_000_000, 10_000_000] {
            let mut adaptive = Adaptive::new(64);
            let Counts { here, there } = Model::new(each, 20_000).bursts(&mut adaptive, depth, 65_536, every);
            assert!(there * 100 >= here * 70, "{each} ns each, every {every}: {here} here, {there} there");
        }
    }
}

#[test]
fn a_trifle_behind_large_ones_keeps_none_from_workers() {
    let (mut adaptive, now) = (Adaptive::new(64), Instant::now());
    adaptive.took(RequestClass::Read, 4_096, 1_000);
    adaptive.took(RequestClass::Read, 65_536, 200_000);
    for len in [65_536, 65_536, 65_536, 4_096] {
        adaptive.join(now, 0, RequestClass::Read, len, false);
    }
    let plan = adaptive.plan(&Outlook { now, moved: 0, spare_parts: false, has_room: |_| true });
    assert!(matches!(plan, Some(BacklogPlan::Give(BacklogEntry { len: 65_536, .. }))));
}
