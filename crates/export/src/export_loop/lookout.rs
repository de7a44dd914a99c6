//! Decides whether an idle thread looks for requests for a while before it sleeps.
//!
//! Waking a sleeping processor often costs more than the request that wakes it. A look costs
//! processor time: it is bounded, and goes on only while looks pay.
//!
//! ```text
//!                    a look found something: score + 1, at most BEST
//!                   +-----+
//!                   v     |         the last look of the score was in vain
//!   +----------->  looks  +--------------------------------------------> rests --+
//!   |               |     ^                                               |      |
//!   | enough        |     | in vain: score - 1                            +------+
//!   | short waits   |     |                                        a short wait: one less;
//!   | are over      +-----+                                        a long one does not count
//!   +---------------------------------------------------------------------+
//!       for one trial; each trial in vain doubles the rest
//!
//!   a look lost the processor --> no looks for a time, which doubles when it happens again
//! ```
//!
//! - A client that comes rarely has long waits only, so no look is made for it.
//! - A thread loses its processor in the middle of a look only if other threads want processors, or
//!   if the host of a virtual machine does. Looking would then take time from the client itself.

use std::time::{Duration, Instant};

/// Looks that may be in vain, one after the other, once they have paid for long.
const BEST: u32 = 8;

/// Short waits before the first look, and after a failed trial: at first and at most.
const FIRST_REST: u32 = 4;
const LONGEST_REST: u32 = 4096;

/// A wait is short up to this many times the limit: the client and this thread both had to be
/// woken.
const SHORT: u32 = 4;

/// A step of a look takes a microsecond; one that takes this long was interrupted.
const LOST: Duration = Duration::from_micros(100);

/// How long no look is made after the processor was lost: at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The history of one kind of wait, and the decision that follows from it.
pub(super) struct Lookout {
    limit: Duration,
    /// Looks are made while this is above 0.
    score: u32,
    /// Short waits until the next trial.
    rest: u32,
    next_rest: u32,
    /// When this wait began, and its last step.
    since: Instant,
    step: Instant,
    /// True when this wait began with a look, which may have lost the processor.
    looked: bool,
    lost: bool,
    /// The time before which no look is made.
    paused_until: Instant,
    pause: Duration,
}

impl Lookout {
    /// Looks last for `limit` at most. With zero none is made.
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            score: 0,
            rest: FIRST_REST,
            next_rest: FIRST_REST,
            since: now,
            step: now,
            looked: false,
            lost: false,
            paused_until: now,
            pause: FIRST_PAUSE,
        }
    }

    /// Begins a wait. Returns true when the wait begins with a look.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        (self.since, self.step, self.lost) = (now, now, false);
        self.looked = self.score > 0 && now >= self.paused_until && !self.limit.is_zero();
        self.looked
    }

    /// Returns true when a look that has found nothing yet is to be continued.
    pub(super) fn goes_on(&mut self, now: Instant) -> bool {
        let step = now.saturating_duration_since(self.step);
        self.step = now;
        if step >= LOST {
            self.lost = true;
            self.pauses(now);
            return false;
        }
        now.saturating_duration_since(self.since) < self.limit
    }

    /// Ends the wait: the look found an event, or the thread was woken.
    pub(super) fn ends(&mut self, now: Instant) {
        let waited = now.saturating_duration_since(self.since);
        match self.looked {
            // The look was cut short, so its worth is unknown.
            true if self.lost => {}
            true if waited < self.limit => {
                self.score = (self.score + 1).min(BEST);
                if self.score == BEST {
                    self.next_rest = FIRST_REST;
                }
            }
            true => {
                self.score -= 1;
                if self.score == 0 {
                    self.rest = self.next_rest;
                    self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
                }
            }
            false if self.score == 0 && waited < self.limit * SHORT => {
                self.rest = self.rest.saturating_sub(1);
                self.score = u32::from(self.rest == 0);
            }
            false => {}
        }
    }

    /// Notes that the processor was lost. Pauses are short again once looks were undisturbed for as
    /// long as the last pause was.
    fn pauses(&mut self, now: Instant) {
        let again = now.saturating_duration_since(self.paused_until) < self.pause;
        self.pause = if again { (self.pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        self.paused_until = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const STEP: Duration = Duration::from_micros(1);

    /// A thread whose clock is moved by hand.
    struct Thread {
        lookout: Lookout,
        now: Instant,
        looked_for: Duration,
    }

    impl Thread {
        fn new(limit: Duration) -> Self {
            let now = Instant::now();
            Self { lookout: Lookout::new(limit, now), now, looked_for: Duration::ZERO }
        }

        /// Waits for a request that comes after `gap`; each step of a look takes `step`. True when
        /// a look found the request.
        fn waits(&mut self, gap: Duration, step: Duration) -> bool {
            let comes = self.now + gap;
            let begun = self.now;
            let mut found = false;
            if self.lookout.begins(self.now) {
                loop {
                    found = self.now >= comes;
                    if found {
                        break;
                    }
                    self.now += step;
                    if !self.lookout.goes_on(self.now) {
                        break;
                    }
                }
                self.looked_for += self.now - begun;
            }
            self.now = self.now.max(comes);
            self.lookout.ends(self.now);
            found
        }

        /// Repeats a wait, and returns how many of the waits a look ended.
        fn found(&mut self, waits: usize, gap: Duration) -> usize {
            (0..waits).filter(|_| self.waits(gap, STEP)).count()
        }
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_quick_client_is_looked_for_after_a_few_waits() {
        let mut thread = Thread::new(LIMIT);
        assert_eq!(thread.found(FIRST_REST as usize, us(20)), 0, "it is not known yet");
        assert_eq!(thread.found(1000, us(20)), 1000);
        // Now and then it takes longer.
        for _ in 0..100 {
            assert!(!thread.waits(us(300), STEP));
            assert_eq!(thread.found(3, us(20)), 3);
        }
    }

    #[test]
    fn a_client_that_has_to_be_woken_itself_is_met_awake() {
        let mut thread = Thread::new(LIMIT);
        // Client and thread both have to be woken: until the first trial, the sleep takes longer
        // than a look.
        assert_eq!(thread.found(FIRST_REST as usize, us(120)), 0);
        assert_eq!(thread.found(100, us(40)), 100);
    }

    #[test]
    fn a_client_that_comes_rarely_costs_nothing() {
        let mut thread = Thread::new(LIMIT);
        assert_eq!(thread.found(10_000, Duration::from_millis(1)), 0);
        assert_eq!(thread.looked_for, Duration::ZERO);
        // A quick client becomes slow: the looks that are left are the score's.
        thread.found(100, us(20));
        thread.looked_for = Duration::ZERO;
        assert_eq!(thread.found(1_000_000, Duration::from_millis(1)), 0);
        assert_eq!(thread.looked_for, LIMIT * BEST);
    }

    #[test]
    fn trials_become_rare_where_they_do_not_pay() {
        let mut thread = Thread::new(LIMIT);
        // Each wait is a little longer than the limit.
        assert_eq!(thread.found(1_000_000, us(60)), 0);
        let share = thread.looked_for.as_secs_f64() / 60.0;
        assert!(share < 0.001, "{share} of the time was spent looking");
        assert!(thread.looked_for > LIMIT * 100, "it is tried again and again");
        let later = (0..=LONGEST_REST).position(|_| thread.waits(us(20), STEP));
        assert!(later.is_some(), "a client that has become quick is noticed");
        assert_eq!(thread.found(100, us(20)), 100);
    }

    #[test]
    fn looks_end_where_fewer_than_half_pay() {
        let mut thread = Thread::new(LIMIT);
        for _ in 0..100_000 {
            thread.waits(us(10), STEP);
            thread.waits(us(100), STEP);
            thread.waits(us(100), STEP);
        }
        let share = thread.looked_for.as_secs_f64() / (100_000.0 * 210e-6);
        assert!(share < 0.005, "{share} of the time was spent looking");
    }

    #[test]
    fn a_busy_machine_ends_all_looks() {
        let mut thread = Thread::new(LIMIT);
        thread.found(100, us(20));
        let start = thread.now;
        thread.looked_for = Duration::ZERO;
        let mut lost = 0;
        // Whenever this thread looks, another thread takes its processor, for three milliseconds.
        while thread.now - start < Duration::from_secs(60) {
            lost += usize::from(thread.lookout.score > 0 && thread.now >= thread.lookout.paused_until);
            thread.waits(us(20), Duration::from_millis(3));
        }
        assert!(lost < 45, "{lost} looks in a minute");
        // The other threads have ended: the next trial pays, and the looks after it.
        thread.now += LONGEST_PAUSE;
        assert_eq!(thread.found(100, us(20)), 100);
        // A single interruption has no lasting effect.
        thread.now += LONGEST_PAUSE;
        assert!(!thread.waits(us(20), Duration::from_millis(3)));
        thread.now += FIRST_PAUSE;
        assert_eq!(thread.found(100, us(20)), 100);
    }

    #[test]
    fn no_limit_means_never() {
        let mut thread = Thread::new(Duration::ZERO);
        assert_eq!(thread.found(1000, Duration::ZERO), 0);
        assert_eq!(thread.looked_for, Duration::ZERO);
    }
}
