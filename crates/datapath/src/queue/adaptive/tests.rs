//! The policy over a model: one worker that takes a while to wake, a queue that is always full, and a clock of its own. What is
//! looked at are counts.

use std::cell::Cell;
use std::time::Duration;

use super::*;

/// Nanoseconds after which a worker without work sleeps.
const SPINS: u64 = 50_000;

/// A machine of two processors: this thread has one, a worker the other, if nothing else runs.
struct Model {
    /// What a request takes, on either.
    each: u64,
    /// For so long a task stops this thread: the worker has this thread's processor.
    stops: u64,
    /// What a worker that sleeps takes to come.
    wakes: u64,
    /// When the worker is done with what it has.
    free_at: u64,
    /// Tasks at the worker: given, begun, done, and whether another was there.
    tasks: VecDeque<(u64, u64, u64, bool)>,
}

/// Requests that this thread did, and that the worker did.
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

    /// As `Workers::has_room` with two threads, of which the queue's processor leaves room for one.
    fn has_room(&self, now: u64, away: usize) -> bool {
        let waiting = self.tasks.iter().filter(|task| task.1 > now).count();
        waiting == 0 && (self.tasks.is_empty() || (away > 0 && away < 2))
    }

    /// A client keeps `depth` requests of `len` bytes in flight. Those are counted that end when both ways have been tried.
    fn run(&mut self, adaptive: &mut Adaptive, depth: usize, len: u64) -> Counts {
        const TRIES: u64 = 30_000_000;
        const ENDS: u64 = 130_000_000;
        let start = Instant::now();
        let (now, mut moved, mut flying) = (Cell::new(0), 0, 0);
        let mut counts = Counts::default();
        while now.get() < ENDS {
            while flying < depth {
                adaptive.join(0, Class::Read, len, false);
                flying += 1;
            }
            while self.tasks.front().is_some_and(|task| task.2 <= now.get()) {
                let Some((given, begun, _, follows)) = self.tasks.pop_front() else { break };
                adaptive.away -= 1;
                if !follows {
                    adaptive.reacted(begun - given);
                }
                (flying, moved, counts.there) =
                    (flying - 1, moved + len, counts.there + u32::from(now.get() > TRIES));
            }
            let plan = adaptive.plan(&Outlook {
                now: start + Duration::from_nanos(now.get()),
                moved,
                spare_parts: false,
                has_room: |away| self.has_room(now.get(), away),
            });
            match plan {
                Some(Plan::Give(_)) => {
                    self.give(now.get());
                    now.set(now.get() + self.stops);
                    adaptive.gave();
                }
                Some(Plan::Do(_)) => {
                    now.set(now.get() + self.each);
                    adaptive.took(Class::Read, len, self.each);
                    (flying, moved, counts.here) =
                        (flying - 1, moved + len, counts.here + u32::from(now.get() > TRIES));
                }
                Some(Plan::Divide(..)) => unreachable!("nothing here divides"),
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
                // All but the epochs in which the worse way is tried.
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
