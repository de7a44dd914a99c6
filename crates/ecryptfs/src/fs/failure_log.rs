//! Messages to the operator about failing lower files; many failures give fewer messages.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of a mount's failures that are logged individually; after that every thousandth.
const LOGGED: u64 = 20;

/// The failures of a mount.
#[derive(Debug, Default)]
pub(super) struct FailureLog(AtomicU64);

impl FailureLog {
    /// Logs a failure, if its number is due. `what` is called only then.
    pub(super) fn add<T: fmt::Display>(&self, what: impl FnOnce() -> T) {
        if let Some(number) = self.next() {
            log::error!("{} (failure {number} of this mount)", what());
        }
    }

    /// Counts a failure. Returns its number, if it is logged.
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
        let failure_log = FailureLog::default();
        let logged: Vec<_> = (0..3000).filter_map(|_| failure_log.next()).collect();
        assert_eq!(logged[..20], (1..=20).collect::<Vec<_>>());
        assert_eq!(logged[20..], [1000, 2000, 3000]);
    }
}
