//! How fast a volume is rewritten while it is used, and whether that goes on: what its operator
//! says, and what its users leave.
//!
//! ```text
//!   Pace      shared by who rewrites, step after step, and who controls that: go on, pause, stop; the rate; how far it is
//!     rests   how long to rest after a step, so that the volume's users hardly notice
//! ```

mod rests;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::rests::{Rests, Window};
use crate::Histogram;

/// A step is no longer than this while the volume has users: one that wants to go where it is waits
/// for it.
const MOST_BESIDE_USERS: u64 = 4 << 20;
/// And it is shorter where it takes longer than this.
const LONG: Duration = Duration::from_millis(20);
/// It is not longer than this while there are none: the first one who comes may want to go there.
const STEP_ALONE: u64 = 16 << 20;
/// Nor shorter than this by any rate: each costs writes of the header, and their syncs.
const LEAST_STEP: u64 = 1 << 20;
/// How fast it goes is looked at over so many seconds.
const LOOK_BACK: usize = 10;

/// How fast it may go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the volume's users hardly notice; without any, as fast as it can.
    #[default]
    GiveWay,
    /// As fast as it can.
    Full,
    /// At most so many bytes a second.
    Limit(NonZeroU64),
}

/// What whoever rewrites a volume is told between two steps, and tells.
#[derive(Debug, Default)]
pub struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rate: Rate,
    paused: bool,
    stopped: bool,
    done: u64,
    left: u64,
    /// How far it was, a second apart.
    past: VecDeque<(Instant, u64)>,
    last: Option<Step>,
    rests: Rests,
    beside: StepTimes,
}

/// How long a step is beside users.
#[derive(Debug)]
struct StepTimes(u64);

/// The step that was begun last.
#[derive(Debug)]
struct Step {
    begun: Instant,
    done: u64,
    /// What the volume's users had done by then.
    users: Histogram,
    rest: Window,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advance {
    /// Bytes that are rewritten.
    pub done: u64,
    /// Bytes that there are.
    pub total: u64,
    /// Bytes a second, lately.
    pub rate: u64,
    /// How long the rest takes at that rate; none while nothing moves.
    pub left: Option<Duration>,
}

impl Pace {
    /// A pace at some rate; it goes on from the first.
    pub fn new(rate: Rate) -> Self {
        Self { state: Mutex::new(State { rate, ..State::default() }), changed: Condvar::new() }
    }

    /// Rests after the step that is under way, until it [goes on](Self::go_on).
    pub fn pause(&self) {
        self.change(|state| state.paused = true);
    }

    /// Ends a pause.
    pub fn go_on(&self) {
        self.change(|state| {
            state.paused = false;
            state.past.clear();
        });
    }

    /// Ends after the step that is under way.
    pub fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Another rate from now on.
    pub fn set_rate(&self, rate: Rate) {
        self.change(|state| {
            state.rate = rate;
            state.past.clear();
        });
    }

    /// The rate that was set.
    pub fn rate(&self) -> Rate {
        self.state().rate
    }

    /// Whether it rests.
    pub fn is_paused(&self) -> bool {
        self.state().paused
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// So far it is, before the first step or after the last.
    pub fn set_position(&self, done: u64, left: u64) {
        self.change(|state| (state.done, state.left) = (done, left));
    }

    /// How far it is.
    pub fn advance(&self) -> Advance {
        let state = self.state();
        let State { done, left, .. } = *state;
        let moved = state.past.front().map_or(0, |(at, before)| {
            per_second(done.saturating_sub(*before), at.elapsed().max(Duration::from_millis(1)))
        });
        let rate = if state.paused || state.stopped { 0 } else { moved };
        let left_for = left.checked_div(rate).map(Duration::from_secs);
        Advance { done, total: done.saturating_add(left), rate, left: left_for }
    }

    /// Between two steps: `done` bytes are rewritten by now, `left` are not. Waits until the next
    /// step may begin, and says how many bytes it may have; none when there is to be none. `users`
    /// tells what the requests of the volume's users took until now.
    pub fn next(&self, done: u64, left: u64, users: impl Fn() -> Histogram) -> Option<u64> {
        let ended = Instant::now();
        let mut state = self.state();
        state.is_at(ended, done, left);
        let last = state.last.take();
        let (step, moved) = match &last {
            Some(step) => (step.window(ended, &users()), done.saturating_sub(step.done)),
            None => (Window::default(), 0),
        };
        let before = last.map(|step| step.rest).unwrap_or_default();
        let has_users = step.has_users() || before.has_users();
        if has_users && moved > 0 {
            state.beside.after(step.took);
        }
        let rest = if moved > 0 { state.rests.after(&before, &step) } else { Duration::ZERO };
        let resting_from = users();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let (from, most) = match state.rate {
                Rate::GiveWay if has_users => (rest, state.beside.0),
                Rate::GiveWay | Rate::Full => (Duration::ZERO, STEP_ALONE),
                Rate::Limit(rate) => {
                    let most = (rate.get() / 4).clamp(LEAST_STEP, STEP_ALONE);
                    (time_of(moved, rate).saturating_sub(step.took), most)
                }
            };
            let wait = from.saturating_sub(now - ended);
            if !state.paused && wait.is_zero() {
                let users = users();
                let rest = Window { took: now - ended, users: users.since(&resting_from) };
                state.last = Some(Step { begun: now, done, users, rest });
                return Some(most);
            }
            // Whoever pauses says when it goes on.
            let wait = if state.paused { Duration::MAX } else { wait };
            state = match wait {
                Duration::MAX => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                wait => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_at(&mut self, now: Instant, done: u64, left: u64) {
        (self.done, self.left) = (done, left);
        if self.past.back().is_none_or(|(at, _)| now - *at >= Duration::from_secs(1)) {
            self.past.push_back((now, done));
        }
        while self.past.len() > LOOK_BACK {
            self.past.pop_front();
        }
    }
}

impl Default for StepTimes {
    fn default() -> Self {
        Self(LEAST_STEP)
    }
}

impl StepTimes {
    /// A step beside users took so long.
    fn after(&mut self, took: Duration) {
        self.0 = match took {
            took if took > LONG => self.0 / 2,
            took if took < LONG / 2 => self.0 * 2,
            _ => self.0,
        };
        self.0 = self.0.clamp(LEAST_STEP, MOST_BESIDE_USERS);
    }
}

impl Step {
    fn window(&self, ended: Instant, users: &Histogram) -> Window {
        Window { took: ended - self.begun, users: users.since(&self.users) }
    }
}

fn per_second(bytes: u64, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// How long so many bytes take at a rate.
fn time_of(bytes: u64, rate: NonZeroU64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn nobody() -> Histogram {
        Histogram::default()
    }

    #[test]
    fn without_users_steps_are_long_and_follow_each_other() {
        let pace = Pace::default();
        let begun = Instant::now();
        for step in 0..100 {
            assert_eq!(pace.next(step << 24, (100 - step) << 24, nobody), Some(STEP_ALONE));
        }
        // A hundred rests of the shortest kind would be longer than that on any machine.
        assert!(begun.elapsed() < Duration::from_secs(60));
        let advance = pace.advance();
        assert_eq!((advance.done, advance.total), (99 << 24, 100 << 24));
    }

    #[test]
    fn steps_are_short_as_soon_as_there_is_a_user() {
        let pace = Pace::default();
        let served = Mutex::new(Histogram::default());
        let users = || served.lock().unwrap().clone();
        assert_eq!(pace.next(0, 1 << 30, users), Some(STEP_ALONE));
        served.lock().unwrap().record(Duration::from_micros(50));
        assert!(pace.next(1 << 24, 1 << 30, users).is_some_and(|most| most <= MOST_BESIDE_USERS));
        assert_eq!(pace.next(2 << 24, 1 << 30, users), Some(STEP_ALONE));
    }

    #[test]
    fn steps_that_take_long_become_shorter_and_others_longer() {
        let mut beside = StepTimes::default();
        (0..9).for_each(|_| beside.after(LONG / 10));
        assert_eq!(beside.0, MOST_BESIDE_USERS);
        beside.after(LONG);
        assert_eq!(beside.0, MOST_BESIDE_USERS);
        (0..9).for_each(|_| beside.after(2 * LONG));
        assert_eq!(beside.0, LEAST_STEP);
    }

    #[test]
    fn a_limit_spreads_the_steps_over_the_time() {
        let rate = NonZeroU64::new(64 << 20).unwrap();
        let pace = Pace::new(Rate::Limit(rate));
        let begun = Instant::now();
        let mut done = 0;
        for _ in 0..4 {
            let most = pace.next(done, 1 << 40, nobody).unwrap();
            assert_eq!(most, 16 << 20);
            done += most;
        }
        pace.next(done, 1 << 40, nobody).unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_pause_lasts_until_it_goes_on_and_a_stop_ends_it() {
        let pace = Arc::new(Pace::default());
        pace.pause();
        assert!(pace.is_paused());
        let next = |done| {
            let pace = pace.clone();
            thread::spawn(move || pace.next(done, 1 << 30, nobody))
        };
        let waits = next(0);
        thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        assert_eq!(pace.advance().left, None);
        pace.go_on();
        assert_eq!(waits.join().unwrap(), Some(STEP_ALONE));
        pace.pause();
        let waits = next(1 << 20);
        thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        pace.stop();
        assert_eq!(waits.join().unwrap(), None);
        assert_eq!(pace.next(0, 0, nobody), None);
    }

    #[test]
    fn another_rate_holds_for_who_rests_already() {
        let pace = Arc::new(Pace::new(Rate::Limit(NonZeroU64::MIN)));
        assert!(pace.next(0, 1 << 30, nobody).is_some());
        let resting = {
            let pace = pace.clone();
            thread::spawn(move || pace.next(1 << 20, 1 << 30, nobody))
        };
        thread::sleep(Duration::from_millis(20));
        assert!(!resting.is_finished());
        pace.set_rate(Rate::Full);
        assert_eq!(resting.join().unwrap(), Some(STEP_ALONE));
    }
}
