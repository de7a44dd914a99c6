//! What the operator is told of requests that failed: not of each, when there are many.

use std::fmt;

use underseal_datapath::{Error as Failure, ErrorKind as Kind};

/// How many failures are logged one by one; then every thousandth.
const LOGGED: u64 = 20;

/// The failures of one stream of requests.
pub(crate) struct Complaints {
    of: &'static str,
    count: u64,
}

impl Complaints {
    /// `of` says whose they are: "this connection".
    pub(crate) fn new(of: &'static str) -> Self {
        Self { of, count: 0 }
    }

    /// Tells what the lower device did to `what`, if it is its turn; a client's own mistakes are
    /// its own business.
    pub(crate) fn tell(&mut self, what: impl fmt::Display, failure: &Failure) {
        if !matches!(failure.kind(), Kind::Lower | Kind::NoSpace | Kind::Integrity) {
            return log::debug!("{what}: {failure}");
        }
        if let Some(number) = self.next() {
            let failure = underseal_error::with_causes(failure);
            log::error!("{what}: {failure} (failure {number} of {})", self.of);
        }
    }

    /// Counts a failure: its number, if it is logged.
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
        let mut complaints = Complaints::new("this test");
        let logged: Vec<_> = (0..3000).filter_map(|_| complaints.next()).collect();
        assert_eq!(logged[..20], (1..=20).collect::<Vec<_>>());
        assert_eq!(logged[20..], [1000, 2000, 3000]);
    }
}
