//! Whether the machine itself stood still: virtual processors are paused now and then, for seconds.
//!
//! A thread on each processor sleeps for moments. When one wakes up far too late, every figure of
//! that time is about the machine and not about what was measured. The threads know nothing of the
//! subjects, so no subject is favoured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long the threads sleep.
const TICK: Duration = Duration::from_millis(25);
/// Later than this no scheduler is, however busy its processor.
const LATE: Duration = Duration::from_millis(300);

/// Watches until it is dropped.
pub(crate) struct Stalls {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    seen: AtomicU64,
    over: AtomicBool,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let shared = Arc::new(Shared::default());
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let threads = cpus.filter_map(|cpu| {
            let shared = shared.clone();
            // Without a thread on it a processor is not watched: nothing else changes.
            thread::Builder::new().name("stalls".into()).spawn(move || shared.tick(cpu)).ok()
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// How often the machine has stood still so far.
    pub(crate) fn seen(&self) -> u64 {
        self.shared.seen.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn tick(&self, cpu: usize) {
        let mut only = CpuSet::new();
        only.set(cpu);
        if sched_setaffinity(None, &only).is_err() {
            return;
        }
        while !self.over.load(Ordering::Relaxed) {
            let start = Instant::now();
            thread::sleep(TICK);
            if start.elapsed() > TICK + LATE {
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
