//! Detects that the machine itself stood still: virtual processors are paused now and then, for
//! seconds.
//!
//! A thread on each processor sleeps for moments. When one wakes up far too late, every figure of
//! that time reflects the machine and not the subject. The threads do not depend on the subjects,
//! so no subject is favoured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The sleep of the threads.
const TICK: Duration = Duration::from_millis(25);
/// A delay that no scheduler reaches, however busy its processor is.
const LATE: Duration = Duration::from_millis(300);

/// Watches the machine until this value is dropped.
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
            // A processor without a thread is not watched; nothing else changes.
            thread::Builder::new().name("stalls".into()).spawn(move || shared.tick(cpu)).ok()
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// Returns how often the machine has stood still so far.
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
