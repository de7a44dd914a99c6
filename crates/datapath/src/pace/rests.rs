//! The rest of a reencryption after each step.
//!
//! Under constant load a rest is a multiple of the step before it; under light load it is
//! proportionally shorter. The factor is measured: latencies of requests that end during steps are
//! compared with those that end between steps. While the 99th percentile during steps is more than
//! twice as long, steps become rarer, until they are a hundredth of the time themselves; otherwise
//! they become more frequent, but nine tenths of the time are always left to clients.

use std::time::Duration;

use crate::Histogram;

/// The limits of a rest's length as a multiple of the step's; the first value is the initial one.
const LEAST: f64 = 9.0;
const MOST: f64 = 100.0;
/// The longest rest, however busy the clients are.
const LONGEST: Duration = Duration::from_secs(2);
/// The number of requests below which a 99th percentile means nothing.
const ENOUGH: u64 = 200;

/// The clients' requests during some time.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) took: Duration,
    /// The latencies of requests that ended in this time.
    pub(super) users: Histogram,
}

impl Window {
    pub(super) fn has_users(&self) -> bool {
        self.users.count() > 0
    }
}

/// The measurements so far.
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
    /// Returns the rest after `step`, which followed the rest `rest`.
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

/// The mean number of requests in flight, at most 1.
fn load(rest: &Window, step: &Window) -> f64 {
    let in_flight = rest.users.total() + step.users.total();
    let took = (rest.took + step.took).max(Duration::from_nanos(1));
    (in_flight.as_secs_f64() / took.as_secs_f64()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// `requests` requests that took `each`, in a time of `took`.
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
        // Rare requests: one is in flight for a hundredth of the time.
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
