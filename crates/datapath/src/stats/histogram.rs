//! Latency histograms: counted by one thread, read by any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets for each power of two: a bucket is at most 1/16 of its value wide.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;
/// The largest power of two with buckets: 2^41 ns are 36 minutes.
const LARGEST: u32 = 41;
const BUCKETS: usize = PARTS * (LARGEST - PARTS_BITS + 2) as usize;

/// A histogram of latencies.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    /// The sum of all latencies, in nanoseconds.
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl Histogram {
    /// Counts a latency.
    pub fn record(&mut self, value: Duration) {
        let nanos = nanos(value);
        self.counts[bucket(nanos)] += 1;
        self.total = self.total.saturating_add(nanos);
    }

    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all latencies.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total)
    }

    /// The mean latency; zero without any.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total.checked_div(self.count()).unwrap_or(0))
    }

    /// The latency that a share of all (0.5: half, 0.999: all but one in a thousand) does not
    /// exceed: at most a sixteenth too large. Zero without any.
    pub fn quantile(&self, share: f64) -> Duration {
        let count = self.count();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a count is a count"
        )]
        let rank = ((count as f64 * share.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut below = 0;
        for (index, n) in self.counts.iter().enumerate() {
            below += n;
            if below >= rank {
                return Duration::from_nanos(upper(index));
            }
        }
        Duration::ZERO
    }

    /// The buckets that are not empty: the longest latency of each, and its number of latencies.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let some = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        some.map(|(index, n)| (Duration::from_nanos(upper(index)), *n))
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(to, n)| *to += n);
        self.total = self.total.saturating_add(other.total);
    }

    /// The counts since `earlier`, an older state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        since.counts.iter_mut().zip(earlier.counts.iter()).for_each(|(to, n)| *to = to.saturating_sub(*n));
        since.total = self.total.saturating_sub(earlier.total);
        since
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99) = (self.quantile(0.5), self.quantile(0.99));
        write!(f, "Histogram({} values, p50 {p50:?}, p99 {p99:?})", self.count())
    }
}

/// A histogram that one thread writes while others read it.
pub(crate) struct LiveHistogram {
    counts: Box<[AtomicU64]>,
    total: AtomicU64,
}

impl LiveHistogram {
    pub(crate) fn new() -> Self {
        Self { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), total: AtomicU64::new(0) }
    }

    /// Counts a latency `times` times. Only the owner's thread calls this.
    pub(crate) fn record(&self, nanos: u64, times: u64) {
        add(&self.counts[bucket(nanos)], times);
        add(&self.total, nanos.saturating_mul(times));
    }

    pub(crate) fn add_to(&self, sum: &mut Histogram) {
        for (to, n) in sum.counts.iter_mut().zip(&self.counts) {
            *to += n.load(Ordering::Relaxed);
        }
        sum.total = sum.total.saturating_add(self.total.load(Ordering::Relaxed));
    }
}

/// Adds to a counter that only one thread writes: cheaper than an atomic addition.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.min((1 << (LARGEST + 1)) - 1);
    if nanos < PARTS as u64 {
        return usize::try_from(nanos).unwrap_or(0);
    }
    let shift = nanos.ilog2() - PARTS_BITS;
    PARTS * shift as usize + usize::try_from(nanos >> shift).unwrap_or(0)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let (shift, part) = (bucket / PARTS - 1, bucket % PARTS + PARTS);
    ((part as u64 + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket_and_the_bucket_is_narrow(value in 0u64..1 << 42) {
            let bucket = bucket(value);
            prop_assert!(value <= upper(bucket));
            prop_assert!(bucket == 0 || value > upper(bucket - 1));
            prop_assert!(upper(bucket) - value <= value / 16);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(mut values in prop::collection::vec(0u64..1 << 40, 1..200),
            share in 0.0f64..1.0) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|v| histogram.record(Duration::from_nanos(*v)));
            values.sort_unstable();
            let below = values.iter().enumerate().filter(|(i, _)| (*i as f64) < (values.len() as f64 * share).ceil());
            let exact = below.max_by_key(|(i, _)| *i).map_or(values[0], |(_, v)| *v);
            let found = nanos(histogram.quantile(share));
            prop_assert!(exact <= found && found - exact <= exact / 16, "{exact} {found}");
        }
    }

    #[test]
    fn the_longest_fall_into_the_last_bucket_and_none_is_lost() {
        let live = LiveHistogram::new();
        live.record(u64::MAX, 2);
        live.record(5, 1);
        let mut sum = Histogram::default();
        live.add_to(&mut sum);
        assert_eq!(sum.count(), 3);
        assert_eq!(sum.quantile(0.0), Duration::from_nanos(5));
        let earlier = sum.clone();
        sum.record(Duration::from_micros(7));
        assert_eq!(sum.since(&earlier).count(), 1);
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }
}
