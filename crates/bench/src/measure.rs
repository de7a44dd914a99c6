//! Interleaved medians: every subject is timed once in each round, so that a noisy neighbour or a
//! changing clock affects all subjects alike, and ratios are compared. The clock is the thread's
//! processor time, which excludes time that other processes take.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The throughput of a subject over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThroughputSample {
    /// The median, in GB/s (10^9 bytes a second).
    pub gb_per_s: f64,
    /// Half the distance between the quartiles, as a part of the median.
    pub spread: f64,
}

/// The effort of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The number of timings of each subject.
    pub rounds: usize,
    /// The minimum time of a timing.
    pub slice: Duration,
}

impl Effort {
    /// A few seconds for a table: for a first look.
    pub const QUICK: Self = Self { rounds: 7, slice: Duration::from_millis(2) };
    /// For figures to keep.
    pub const FULL: Self = Self { rounds: 31, slice: Duration::from_millis(4) };
}

/// Works on the buffer.
pub type TimedCall<'a> = Box<dyn FnMut(&mut [u8]) + 'a>;

/// A timed subject: one call handles `bytes` bytes.
pub struct Subject<'a> {
    /// The number of bytes of a call.
    pub bytes: usize,
    /// The call.
    pub call: TimedCall<'a>,
}

/// Times the subjects in turn over one buffer.
pub(crate) fn interleaved(
    effort: Effort,
    subjects: &mut [Subject<'_>],
    buffer: &mut [u8],
) -> Vec<ThroughputSample> {
    rates(effort, subjects, buffer).into_iter().map(sample).collect()
}

/// Times the subjects in turn over one buffer. Returns the throughput of each in every round, in
/// GB/s.
pub fn rates(effort: Effort, subjects: &mut [Subject<'_>], buffer: &mut [u8]) -> Vec<Vec<f64>> {
    let mut rates = vec![Vec::with_capacity(effort.rounds); subjects.len()];
    for _ in 0..effort.rounds {
        for (subject, rates) in subjects.iter_mut().zip(&mut rates) {
            (subject.call)(buffer);
            rates.push(rate(effort.slice, subject, buffer));
        }
    }
    rates
}

/// Returns the number of bytes a nanosecond over one slice of time.
pub(crate) fn rate(slice: Duration, subject: &mut Subject<'_>, buffer: &mut [u8]) -> f64 {
    // Reading the clock costs as much as a sector.
    let batch = (1 << 18) / subject.bytes + 1;
    let mut bytes = 0;
    let start = thread_time();
    loop {
        for _ in 0..batch {
            (subject.call)(buffer);
        }
        bytes += batch * subject.bytes;
        let elapsed = thread_time() - start;
        if elapsed >= slice {
            return bytes as f64 / elapsed.as_nanos() as f64;
        }
    }
}

/// Returns the running time of this thread.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

pub(crate) fn sample(mut rates: Vec<f64>) -> ThroughputSample {
    rates.sort_by(f64::total_cmp);
    let last = rates.len() - 1;
    let (low, median, high) = (rates[last / 4], rates[last / 2], rates[last - last / 4]);
    ThroughputSample { gb_per_s: median, spread: (high - low) / (2.0 * median) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_median_and_the_quartiles() {
        let sample = sample(vec![1.0, 2.0, 100.0, 3.0, 4.0]);
        assert_eq!(sample, ThroughputSample { gb_per_s: 3.0, spread: 1.0 / 3.0 });
    }
}
