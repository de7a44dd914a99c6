//! How long to rest after a step.
//!
//! While there are requests all the time, a rest is so many times as long as the step before it;
//! where there are few, it is as much shorter. How many times, is found out: requests that end
//! during steps are compared with those that end between them. Where the slowest hundredth of them
//! takes more than twice as long, steps become rarer, so rare at most that they are that hundredth
//! themselves; where not, more frequent again, but nine tenths of the time are the users' always.

use std::time::Duration;

use crate::Histogram;

/// How many times as long as the step a rest is, at first and at least, and at most.
const LEAST: f64 = 9.0;
const MOST: f64 = 100.0;
/// However busy the users are, it never stands still for longer.
const LONGEST: Duration = Duration::from_secs(2);
/// Fewer requests say nothing of the slowest hundredth.
const ENOUGH: u64 = 200;

/// What the volume's users did for some time.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) took: Duration,
    /// How long their requests took that ended then.
    pub(super) users: Histogram,
}

impl Window {
    pub(super) fn has_users(&self) -> bool {
        self.users.count() > 0
    }
}

/// What was found out so far.
#[derive(Debug)]
pub(super) struct Rests {
    times: f64,
    during: Histogram,
    between: Histogram,
}

impl Default for Rests {
    fn default() -> Self {
        Self { times: LEAST, during: Histogram::default(), between: Histogram::default() }
    }
}

impl Rests {
    /// The rest after `step`, which came after a rest of its own.
    pub(super) fn after(&mut self, rest: &Window, step: &Window) -> Duration {
        self.during.merge(&step.users);
        self.between.merge(&rest.users);
        if self.during.count() >= ENOUGH && self.between.count() >= ENOUGH {
            let [during, between] = [&self.during, &self.between].map(|all| all.quantile(0.99));
            self.times = if during > 2 * between { self.times * 2.0 } else { self.times / 1.25 };
            self.times = self.times.clamp(LEAST, MOST);
            (self.during, self.between) = Default::default();
        }
        let wanted = step.took.mul_f64(self.times * load(rest, step));
        wanted.min(LONGEST)
    }
}

/// How many requests were in flight, in the mean, and 1 at most.
fn load(rest: &Window, step: &Window) -> f64 {
    let in_flight = rest.users.total() + step.users.total();
    let took = (rest.took + step.took).max(Duration::from_nanos(1));
    (in_flight.as_secs_f64() / took.as_secs_f64()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Requests that took so long, so many of them.
    fn window(took: Duration, each: Duration, requests: usize) -> Window {
        let mut users = Histogram::default();
        (0..requests).for_each(|_| users.record(each));
        Window { took, users }
    }

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_busy_volume_is_left_alone_for_most_of_the_time() {
        let mut rests = Rests::default();
        let rest = rests.after(&window(STEP, micros(100), 100), &window(STEP, micros(100), 100));
        assert!(rest >= 8 * STEP && rest <= 10 * STEP, "{rest:?}");
        // A request now and then: a hundredth of the time there is one.
        let seldom = rests.after(&window(99 * STEP, micros(100), 100), &window(STEP, STEP, 0));
        assert!(seldom > Duration::ZERO && seldom <= STEP, "{seldom:?}");
    }

    #[test]
    fn steps_become_rare_where_they_hurt_and_frequent_where_they_do_not() {
        let mut rests = Rests::default();
        let mut rest = Duration::ZERO;
        for _ in 0..20 {
            rest = rests.after(&window(STEP, micros(100), 1000), &window(STEP, micros(300), 1000));
        }
        assert_eq!(rest, STEP.mul_f64(MOST).min(LONGEST));
        for _ in 0..40 {
            rest = rests.after(&window(STEP, micros(100), 1000), &window(STEP, micros(150), 1000));
        }
        assert_eq!(rest, STEP.mul_f64(LEAST));
    }

    #[test]
    fn a_few_slow_requests_prove_nothing() {
        let mut rests = Rests::default();
        let busy = || window(STEP, micros(100), 1000);
        rests.after(&busy(), &window(STEP, micros(900), 12));
        let rest = rests.after(&busy(), &window(STEP, micros(900), 12));
        assert_eq!(rest, STEP.mul_f64(LEAST));
    }

    #[test]
    fn it_never_stands_still() {
        let mut rests = Rests::default();
        let long = Duration::from_secs(60);
        assert_eq!(rests.after(&window(long, long, 8), &window(long, long, 8)), LONGEST);
    }
}
