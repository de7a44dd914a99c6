//! The clock of a ring's deadlines.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time of `CLOCK_MONOTONIC`.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Both parts are never negative on this clock.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
