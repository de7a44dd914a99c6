//! Statistics of a volume: counters, and the latency of each stage of requests.
//!
//! Each queue counts for itself, without a mutex; a reader adds the queues' counters up.

mod histogram;

pub use histogram::Histogram;
use histogram::LiveHistogram;
pub(crate) use histogram::nanos;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use histogram::add;

/// Statistics since the volume was opened, over all its queues.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Open queues.
    pub queues: u64,
    /// Completed reads.
    pub reads: RequestCount,
    /// Completed writes.
    pub writes: RequestCount,
    /// Completed flushes.
    pub flushes: RequestCount,
    /// Completed discards, zeroings and prefetches.
    pub others: RequestCount,
    /// Requests in flight.
    pub in_flight: u64,
    /// The work that waits for the cipher now.
    pub backlog: BacklogStats,
    /// Latency by stage.
    pub stages: Stages,
    /// The threads that did the crypto, in requests or pieces.
    pub dispatched: DispatchStats,
    /// Reads, or pieces of them, with a sector that does not match its tag.
    pub mismatches: u64,
    /// The first bytes of the first such sectors, in bytes of the volume: up to [`MISMATCHES`].
    pub mismatched: Vec<u64>,
}

/// The number of mismatching sectors whose offsets are kept.
pub const MISMATCHES: usize = 16;

/// A long wait of requests for a lower device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowerWait {
    /// The device's name.
    pub on: String,
    /// How long the device has had its oldest request.
    pub lasts: Duration,
}

/// Counters of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCount {
    /// Ended requests, well or not.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Failed requests.
    pub errors: u64,
}

/// Work that waits for a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BacklogStats {
    /// Requests.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// The estimated time of their crypto, by recent measurements.
    pub cost: Duration,
    /// The cost above which the adaptive policy hands work to idle workers.
    pub watermark: Duration,
}

/// Latency by stage. A request that was split counts once for each part in `crypto` and `lower`.
#[derive(Debug, Clone, Default)]
pub struct Stages {
    /// From the arrival until a thread begins the request: waiting for its turn, an earlier write,
    /// or a suspended volume.
    pub queued: Histogram,
    /// From the moment that the crypto is due until it is done, including the time for a worker to
    /// begin.
    pub crypto: Histogram,
    /// Time in the lower device.
    pub lower: Histogram,
    /// From the completion until the export has sent the reply.
    pub reply: Histogram,
    /// From the arrival to the completion.
    pub total: Histogram,
}

/// The threads that did the crypto.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// The thread that received the request.
    pub inline: u64,
    /// A worker.
    pub workers: u64,
    /// Given to a worker and taken back before a worker began it.
    pub taken_back: u64,
}

/// Counters of a queue. Only its thread writes them.
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

/// The thread that did a piece's crypto.
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

/// Sectors that do not match their tags.
#[derive(Default)]
pub(crate) struct TagMismatches {
    count: AtomicU64,
    first: Mutex<Vec<u64>>,
}

impl TagMismatches {
    /// Counts a sector, and keeps its offset while there is room.
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
    /// Counts an ended request.
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

    /// True while requests are in flight.
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

    /// Adds counters and histograms, which outlive the queue.
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

    /// Adds the queue's present load.
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
