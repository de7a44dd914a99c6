//! What the operator is told of lower files that are at fault: not of each, when there are many.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many of a mount's failures are logged one by one; then every thousandth.
const LOGGED: u64 = 20;

/// The failures of a mount.
#[derive(Debug, Default)]
pub(super) struct FailureLog(AtomicU64);

impl FailureLog {
    /// Logs a failure, if it is its turn. `what` is asked for then only.
    pub(super) fn add<T: fmt::Display>(&self, what: impl FnOnce() -> T) {
        if let Some(number) = self.next() {
            log::error!("{} (failure {number} of this mount)", what());
        }
    }

    /// Counts a failure: its number, if it is logged.
    fn next(&self) -> Option<u64> {
        let number = self.0.fetch_add(1, Relaxed) + 1;
        (number <= LOGGED || number.is_multiple_of(1000)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_logged_and_then_every_thousandth() {
        let complaints = FailureLog::default();
        let logged: Vec<_> = (0..3000).filter_map(|_| complaints.next()).collect();
        assert_eq!(logged[..20], (1..=20).collect::<Vec<_>>());
        assert_eq!(logged[20..], [1000, 2000, 3000]);
    }
}
