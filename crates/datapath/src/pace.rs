//! The speed of an online reencryption, by the operator's rate and by the clients' load; pause and
//! stop.
//!
//! ```text
//!   Pace      shared by the reencryption, between its steps, and by its control:
//!             pause, resume, stop; rate; progress
//!     rests   how long to rest after a step, so that clients hardly notice
//! ```

mod rests;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::rests::{Rests, Window};
use crate::Histogram;

/// The longest step while clients are active: a request for the step's range waits for the step.
const MOST_BESIDE_USERS: u64 = 4 << 20;
/// The longest duration of a step; longer ones are made smaller.
const LONG: Duration = Duration::from_millis(20);
/// The longest step without clients: the next client may want the step's range.
const STEP_ALONE: u64 = 16 << 20;
/// The shortest step at any rate: each step costs writes of the header, and syncs.
const LEAST_STEP: u64 = 1 << 20;
/// The speed is measured over this many seconds.
const LOOK_BACK: usize = 10;

/// The speed limit of a reencryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rate {
    /// As fast as clients hardly notice; without clients, as fast as possible.
    #[default]
    GiveWay,
    /// As fast as possible.
    Full,
    /// At most this many bytes a second.
    Limit(NonZeroU64),
}

/// The pacing of a reencryption: its thread asks between two steps, and reports progress.
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
    /// The progress of the last seconds, a second apart.
    past: VecDeque<(Instant, u64)>,
    last: Option<Step>,
    rests: Rests,
    beside: StepTimes,
}

/// The length of a step while clients are active, in bytes.
#[derive(Debug)]
struct StepTimes(u64);

/// The step that began last.
#[derive(Debug)]
struct Step {
    begun: Instant,
    done: u64,
    /// The clients' latencies until then.
    users: Histogram,
    rest: Window,
}

/// The progress of a reencryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advance {
    /// Bytes done.
    pub done: u64,
    /// Total bytes to reencrypt.
    pub total: u64,
    /// Recent speed, in bytes a second.
    pub rate: u64,
    /// The estimated remaining time; none while the speed is zero.
    pub left: Option<Duration>,
}

impl Pace {
    /// A running pace with a rate.
    pub fn new(rate: Rate) -> Self {
        Self { state: Mutex::new(State { rate, ..State::default() }), changed: Condvar::new() }
    }

    /// Pauses after the current step, until [`go_on`](Self::go_on).
    pub fn pause(&self) {
        self.change(|state| state.paused = true);
    }

    /// Resumes after a pause.
    pub fn go_on(&self) {
        self.change(|state| {
            state.paused = false;
            state.past.clear();
        });
    }

    /// Stops after the current step.
    pub fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Changes the rate.
    pub fn set_rate(&self, rate: Rate) {
        self.change(|state| {
            state.rate = rate;
            state.past.clear();
        });
    }

    /// The rate of the last [`Pace::set_rate`].
    pub fn rate(&self) -> Rate {
        self.state().rate
    }

    /// True while paused.
    pub fn is_paused(&self) -> bool {
        self.state().paused
    }

    /// True after [`stop`](Self::stop).
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Sets the progress, before the first step or after the last.
    pub fn set_position(&self, done: u64, left: u64) {
        self.change(|state| (state.done, state.left) = (done, left));
    }

    /// Returns the progress.
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

    /// Called between two steps, with the bytes done and left. Waits until the next step may begin,
    /// and returns the step's length; none when the reencryption is to stop. `users` returns the
    /// latencies of all client requests so far.
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
            // A pause has no end before `go_on`.
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
    /// Adapts the length to the duration of a step beside clients.
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

/// The duration of `bytes` at a rate.
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
        // A hundred of the shortest rests would be longer than that on any machine.
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
