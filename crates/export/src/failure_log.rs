//! The rate-limited log of failed requests: the first ones and then every thousandth.

use std::fmt;

use underseal_datapath::{Error as Failure, ErrorKind as Kind};

/// How many failures are logged one by one; then every thousandth.
const LOGGED: u64 = 20;

/// The rate-limited log of one stream of requests (the glossary's rate-limited log).
pub(crate) struct RateLimitedLog {
    of: &'static str,
    count: u64,
}

impl RateLimitedLog {
    /// `of` names the stream in log lines: "this connection".
    pub(crate) fn new(of: &'static str) -> Self {
        Self { of, count: 0 }
    }

    /// Logs a failure of the lower device in the request `what`, unless the rate limit holds it
    /// back. A client's mistakes are logged at debug level only.
    pub(crate) fn tell(&mut self, what: impl fmt::Display, failure: &Failure) {
        if !matches!(failure.kind(), Kind::Lower | Kind::NoSpace | Kind::Integrity) {
            return log::debug!("{what}: {failure}");
        }
        if let Some(number) = self.next() {
            let failure = underseal_error::with_causes(failure);
            log::error!("{what}: {failure} (failure {number} of {})", self.of);
        }
    }

    /// Counts a failure, and returns its number if it is to be logged.
    fn next(&mut self) -> Option<u64> {
        self.count += 1;
        (self.count <= LOGGED || self.count.is_multiple_of(1000)).then_some(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_logged_and_then_every_thousandth() {
        let mut failure_log = RateLimitedLog::new("this test");
        let logged: Vec<_> = (0..3000).filter_map(|_| failure_log.next()).collect();
        assert_eq!(logged[..20], (1..=20).collect::<Vec<_>>());
        assert_eq!(logged[20..], [1000, 2000, 3000]);
    }
}
