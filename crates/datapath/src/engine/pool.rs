//! An engine in software: a few threads with a queue of bounded depth, as the kernel's cryptd.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::{Accelerator, Job};
use crate::injector::Injector;
use crate::{Error, ErrorKind, Result};

/// Threads that crypt what they are given.
pub struct SoftwarePool {
    injector: Arc<Injector<Job>>,
    /// Jobs that are neither done nor failed.
    taken: Arc<AtomicUsize>,
    depth: usize,
    threads: Vec<JoinHandle<()>>,
}

impl SoftwarePool {
    /// A pool of so many threads that takes up to `depth` jobs at a time.
    ///
    /// # Errors
    /// `Worker` when the system has no threads left.
    pub fn new(threads: usize, depth: usize) -> Result<Self> {
        let (injector, taken) = (Arc::new(Injector::new()), Arc::new(AtomicUsize::new(0)));
        injector.reserve(depth);
        let mut pool = Self { injector, taken, depth: depth.max(1), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let (injector, taken) = (pool.injector.clone(), pool.taken.clone());
            let thread = thread::Builder::new().name(format!("engine {number}")).spawn(move || {
                while let Some(mut job) = injector.pop(std::iter::empty::<()>()) {
                    // A cipher that panics drops its job, which fails it.
                    let run = std::panic::AssertUnwindSafe(move || {
                        job.run();
                        job
                    });
                    let job = std::panic::catch_unwind(run);
                    taken.fetch_sub(1, Ordering::AcqRel);
                    if let Ok(job) = job {
                        job.complete(Ok(()));
                    }
                }
            });
            let thread = thread.map_err(|e| Error::new(ErrorKind::Worker, format!("no thread: {e}")))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl Accelerator for SoftwarePool {
    fn name(&self) -> &'static str {
        "software pool"
    }

    fn submit(&self, job: Job) -> std::result::Result<(), Job> {
        let room = |taken: usize| (taken < self.depth).then_some(taken + 1);
        if self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_err() {
            return Err(job);
        }
        self.injector.push(job).inspect_err(|_| {
            self.taken.fetch_sub(1, Ordering::AcqRel);
        })
    }
}

impl Drop for SoftwarePool {
    fn drop(&mut self) {
        self.injector.close();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
