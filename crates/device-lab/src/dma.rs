//! A model of a DMA engine: the right bytes, at the pace of a device.
//!
//! A job takes `fixed + bytes / bandwidth`, one after the other. Up to `depth` jobs wait in the engine; one that found it
//! full takes `restart` more, which is what it costs a driver to put its submitter to sleep and to wake it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use underseal_datapath::engine::{Accelerator, Job};

/// How fast an engine is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DmaSpec {
    /// What a job costs, however short.
    pub fixed: Duration,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Jobs that it holds.
    pub depth: usize,
    /// What a job costs in addition that was refused before because the engine was full.
    pub restart: Duration,
    /// The most sectors a job; none: whole requests.
    pub max_sectors: Option<usize>,
    /// After this time a job counts as stalled.
    pub patience: Duration,
    /// What goes wrong.
    pub faults: DmaFaults,
}

/// What goes wrong, each once in so many jobs; 0: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DmaFaults {
    /// The engine reports a failure.
    pub fails: u32,
    /// The engine does not answer before its patience is over, but later.
    pub stalls: u32,
    /// The engine never answers: the job and its memory stay in it.
    pub loses: u32,
}

impl Default for DmaSpec {
    fn default() -> Self {
        Self {
            fixed: Duration::from_micros(10),
            bandwidth: 1e9,
            depth: 64,
            restart: Duration::ZERO,
            max_sectors: None,
            patience: Duration::from_secs(1),
            faults: DmaFaults::default(),
        }
    }
}

/// The engine: one thread that answers when the device would.
pub struct DmaModel {
    spec: DmaSpec,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// What waits, what it costs, and when it came.
    jobs: VecDeque<(Job, Duration, Instant)>,
    /// Jobs that are late, and when they come.
    late: Vec<(Job, Instant)>,
    /// Jobs that are never answered, until the engine ends.
    lost: Vec<Job>,
    /// Jobs in the engine, the running one included.
    held: usize,
    refused: usize,
    taken: u64,
    closed: bool,
}

impl DmaModel {
    /// Starts the engine.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub fn new(spec: DmaSpec) -> std::io::Result<Self> {
        let jobs = VecDeque::with_capacity(spec.depth);
        let state = State { jobs, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() });
        let engine = shared.clone();
        let thread = thread::Builder::new().name("dma engine".into()).spawn(move || engine.run(spec))?;
        Ok(Self { spec, shared, thread: Some(thread) })
    }
}

impl Accelerator for DmaModel {
    fn name(&self) -> &'static str {
        "DMA engine (model)"
    }

    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut state = self.shared.state();
        if state.held >= self.spec.depth {
            state.refused += 1;
            return Err(job);
        }
        state.held += 1;
        #[expect(clippy::cast_precision_loss, reason = "jobs are short")]
        let mut cost = self.spec.fixed + Duration::from_secs_f64(job.len() as f64 / self.spec.bandwidth);
        if state.refused > 0 {
            state.refused -= 1;
            cost += self.spec.restart;
        }
        state.jobs.push_back((job, cost, Instant::now()));
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn max_sectors(&self) -> Option<usize> {
        self.spec.max_sectors
    }

    fn patience(&self) -> Duration {
        self.spec.patience
    }
}

impl Drop for DmaModel {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, spec: DmaSpec) {
        // When the device is free: it works through its jobs whether or not this thread wakes up in time.
        let mut free_at = Instant::now();
        let mut state = self.state();
        loop {
            state = self.answer_late(state);
            let Some((mut job, cost, came)) = state.jobs.pop_front() else {
                if state.closed {
                    return;
                }
                let next_late = state.late.iter().map(|(_, when)| *when).min();
                let limit =
                    next_late.map_or(Duration::from_secs(3600), |when| when - Instant::now().min(when));
                let waited = self.work.wait_timeout(state, limit);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            state.taken += 1;
            let fault = |once_in: u32| once_in > 0 && state.taken.is_multiple_of(u64::from(once_in));
            let faults = [fault(spec.faults.fails), fault(spec.faults.stalls), fault(spec.faults.loses)];
            drop(state);
            job.run();
            free_at = free_at.max(came) + cost;
            sleep_until(free_at);
            state = self.state();
            state.held -= 1;
            match faults {
                [_, _, true] => state.lost.push(job),
                [_, true, _] => state.late.push((job, Instant::now() + spec.patience * 2)),
                [true, ..] => job.complete(Err("the engine reports a failure".into())),
                _ => job.complete(Ok(())),
            }
        }
    }

    fn answer_late<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let now = Instant::now();
        while let Some(at) = state.late.iter().position(|(_, when)| *when <= now) {
            state.late.swap_remove(at).0.complete(Ok(()));
        }
        state
    }
}

/// Sleeps for the most part, and watches the clock for the rest: a sleep alone ends some 60 us late.
fn sleep_until(when: Instant) {
    const EARLY: Duration = Duration::from_micros(80);
    loop {
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > EARLY {
            thread::sleep(left - EARLY);
        } else {
            std::hint::spin_loop();
        }
    }
}
