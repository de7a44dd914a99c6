//! Looking at the socket for a little while before sleeping.
//!
//! Waking a sleeping processor can take longer than the whole request. A client that sends its next request soon after
//! a reply is met awake; one that does not is no longer waited for after a few vain looks, until it is quick again.

use std::time::{Duration, Instant};

/// Vain looks after which the client is left alone.
const PATIENCE: u32 = 8;

/// Whether and how long to look, learnt from how soon requests came.
pub(super) struct BusyPoll {
    limit: Duration,
    misses: u32,
    since: Option<Instant>,
}

impl BusyPoll {
    /// Looks for at most `limit`; never with zero.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, misses: 0, since: None }
    }

    /// There is nothing to do from now on. Whether to look for bytes before sleeping.
    pub(super) fn idle(&mut self) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        self.since = Some(Instant::now());
        self.misses < PATIENCE
    }

    /// Whether to go on looking.
    pub(super) fn goes_on(&self) -> bool {
        // A moment between two looks, so that the sender finds the socket's lock free.
        (0..32).for_each(|_| std::hint::spin_loop());
        self.since.is_some_and(|since| since.elapsed() < self.limit)
    }

    /// Something came, while looking or after sleeping.
    pub(super) fn came(&mut self) {
        let Some(since) = self.since.take() else { return };
        self.misses = if since.elapsed() < self.limit { 0 } else { self.misses.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_client_is_left_alone_until_it_is_quick_again() {
        // No time is within the one limit, all times are within the other.
        let (none, any) = (Duration::ZERO, Duration::MAX);
        let mut poll = BusyPoll::new(any);
        for _ in 0..PATIENCE {
            assert!(poll.idle());
            poll.limit = none;
            poll.came();
            poll.limit = any;
        }
        assert!(!poll.idle(), "eight vain looks are enough");
        poll.came();
        assert!(poll.idle(), "it came within the limit: worth looking again");
    }

    #[test]
    fn no_limit_means_never() {
        assert!(!BusyPoll::new(Duration::ZERO).idle());
    }
}
