//! The clock that a ring's deadlines are times of.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time now: `CLOCK_MONOTONIC`, from a point in the past that does not change.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative on this clock.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
