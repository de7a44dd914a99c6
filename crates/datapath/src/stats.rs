//! What a volume has done, and how long each stage of a request took.
//!
//! Each queue counts for itself, without a lock; whoever asks adds them up.

mod histogram;

pub use histogram::Histogram;
use histogram::LiveHistogram;
pub(crate) use histogram::nanos;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use histogram::add;

/// Everything since the volume was opened, over all its queues.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Queues that are open now.
    pub queues: u64,
    /// Reads that are over.
    pub reads: RequestCount,
    /// Writes that are over.
    pub writes: RequestCount,
    /// Flushes that are over.
    pub flushes: RequestCount,
    /// Discards, zeroing and prefetching that are over.
    pub others: RequestCount,
    /// Requests that are neither completed nor failed yet.
    pub in_flight: u64,
    /// What waits for the cipher now.
    pub backlog: BacklogStats,
    /// Latency by stage.
    pub stages: Stages,
    /// Where the crypto was done, in requests or pieces of them.
    pub dispatched: DispatchStats,
    /// Reads, or pieces of them, that found a sector not as it was written.
    pub mismatches: u64,
    /// Where the first of those sectors begin, in bytes of the volume: up to [`MISMATCHES`].
    pub mismatched: Vec<u64>,
}

/// So many sectors that were not as they were written are kept in mind.
pub const MISMATCHES: usize = 16;

/// Requests have been with a lower device for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowerWait {
    /// That device's name.
    pub on: String,
    /// How long it has had the oldest of them.
    pub lasts: Duration,
}

/// Requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCount {
    /// How many ended, well or not.
    pub requests: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
}

/// Work that waits for a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BacklogStats {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What the cipher will take for them, as measured lately.
    pub cost: Duration,
    /// Above this cost the adaptive policy hands work to idle workers.
    pub watermark: Duration,
}

/// Latency by stage. A request that was split counts once for each part in `crypto` and `lower`.
#[derive(Debug, Clone, Default)]
pub struct Stages {
    /// From the arrival until a thread took it up: waiting for its turn, an earlier write, or a
    /// suspended volume.
    pub queued: Histogram,
    /// From the moment that the crypto was due until it was done, including the hand-over to
    /// others.
    pub crypto: Histogram,
    /// In the lower device.
    pub lower: Histogram,
    /// From the completion until the export had sent it.
    pub reply: Histogram,
    /// From the arrival to the completion.
    pub total: Histogram,
}

/// Who did the crypto.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// The thread that brought the request.
    pub inline: u64,
    /// A worker.
    pub workers: u64,
    /// Given to a worker and taken back before one came to it.
    pub taken_back: u64,
}

/// One queue's counters. Its thread alone writes.
pub(crate) struct QueueStats {
    pub(crate) reads: ClassCounters,
    pub(crate) writes: ClassCounters,
    pub(crate) flushes: ClassCounters,
    pub(crate) others: ClassCounters,
    pub(crate) in_flight: AtomicU64,
    pub(crate) backlog_requests: AtomicU64,
    pub(crate) backlog_bytes: AtomicU64,
    pub(crate) backlog_nanos: AtomicU64,
    pub(crate) watermark_nanos: AtomicU64,
    pub(crate) queued: LiveHistogram,
    pub(crate) crypto: LiveHistogram,
    pub(crate) lower: LiveHistogram,
    pub(crate) reply: LiveHistogram,
    pub(crate) total: LiveHistogram,
    pub(crate) mismatches: TagMismatches,
    inline: AtomicU64,
    workers: AtomicU64,
    taken_back: AtomicU64,
}

/// Where a piece's crypto was done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CryptoSite {
    Inline,
    Worker,
    TakenBack,
}

#[derive(Default)]
pub(crate) struct ClassCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// Sectors that were not as they were written.
#[derive(Default)]
pub(crate) struct TagMismatches {
    count: AtomicU64,
    first: Mutex<Vec<u64>>,
}

impl TagMismatches {
    /// One more, which begins there.
    pub(crate) fn add(&self, at: u64) {
        add(&self.count, 1);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.len() < MISMATCHES && !first.contains(&at) {
            first.push(at);
        }
    }

    fn add_to(&self, sum: &mut Stats) {
        sum.mismatches += self.count.load(Relaxed);
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let new = first.iter().filter(|at| !sum.mismatched.contains(at)).copied().collect::<Vec<_>>();
        sum.mismatched.extend(new.into_iter().take(MISMATCHES.saturating_sub(sum.mismatched.len())));
    }
}

impl ClassCounters {
    /// Counts a request of so many bytes that ended.
    pub(crate) fn ended(&self, bytes: u64, well: bool) {
        add(&self.requests, 1);
        if well {
            add(&self.bytes, bytes);
        } else {
            add(&self.errors, 1);
        }
    }

    fn add_to(&self, sum: &mut RequestCount) {
        sum.requests += self.requests.load(Relaxed);
        sum.bytes += self.bytes.load(Relaxed);
        sum.errors += self.errors.load(Relaxed);
    }
}

impl QueueStats {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            reads: ClassCounters::default(),
            writes: ClassCounters::default(),
            flushes: ClassCounters::default(),
            others: ClassCounters::default(),
            in_flight: zero(),
            backlog_requests: zero(),
            backlog_bytes: zero(),
            backlog_nanos: zero(),
            watermark_nanos: zero(),
            queued: LiveHistogram::new(),
            crypto: LiveHistogram::new(),
            lower: LiveHistogram::new(),
            reply: LiveHistogram::new(),
            total: LiveHistogram::new(),
            mismatches: TagMismatches::default(),
            inline: zero(),
            workers: zero(),
            taken_back: zero(),
        }
    }

    /// Requests are neither completed nor failed yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    pub(crate) fn did(&self, who: CryptoSite) {
        let counter = match who {
            CryptoSite::Inline => &self.inline,
            CryptoSite::Worker => &self.workers,
            CryptoSite::TakenBack => &self.taken_back,
        };
        add(counter, 1);
    }

    /// Adds what lasts: counts and histograms.
    pub(crate) fn add_to(&self, sum: &mut Stats) {
        self.reads.add_to(&mut sum.reads);
        self.writes.add_to(&mut sum.writes);
        self.flushes.add_to(&mut sum.flushes);
        self.others.add_to(&mut sum.others);
        let Stages { queued, crypto, lower, reply, total } = &mut sum.stages;
        self.queued.add_to(queued);
        self.crypto.add_to(crypto);
        self.lower.add_to(lower);
        self.reply.add_to(reply);
        self.total.add_to(total);
        self.mismatches.add_to(sum);
        let to = &mut sum.dispatched;
        to.inline += self.inline.load(Relaxed);
        to.workers += self.workers.load(Relaxed);
        to.taken_back += self.taken_back.load(Relaxed);
    }

    /// Adds what is so now.
    pub(crate) fn add_present(&self, sum: &mut Stats) {
        sum.queues += 1;
        sum.in_flight += self.in_flight.load(Relaxed);
        sum.backlog.requests += self.backlog_requests.load(Relaxed);
        sum.backlog.bytes += self.backlog_bytes.load(Relaxed);
        sum.backlog.cost += Duration::from_nanos(self.backlog_nanos.load(Relaxed));
        let watermark = Duration::from_nanos(self.watermark_nanos.load(Relaxed));
        sum.backlog.watermark = sum.backlog.watermark.max(watermark);
    }
}
