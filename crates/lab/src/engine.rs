//! A model of a crypto engine, and the load under which it is measured. No volume has a crypto
//! engine (docs/decisions.md).
//!
//! ```text
//!   requests in flight --> jobs of a few sectors --> the engine's queue --> one after the other
//!         ^                      ^     |  full: the next one costs a restart           |
//!         |                      +-----+                                               v
//!         +------------------------------------ done <---------------------------------+
//! ```
//!
//! A job gets the right bytes, and takes `fixed + bytes / bandwidth`. A job that found the queue
//! full takes `restart` more: the time in which a driver puts its submitter to sleep and wakes it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::SectorCipher;

use crate::{Error, ErrorKind, Result};

/// The speed of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EngineSpec {
    /// The minimum time of a job.
    pub(crate) fixed: Duration,
    /// The number of bytes a second. Infinity stands for this processor's own speed.
    pub(crate) bandwidth: f64,
    /// The number of jobs in its queue.
    pub(crate) depth: usize,
    /// The additional time of a job that was refused before because the engine was full.
    pub(crate) restart: Duration,
}

/// The requests through an engine.
#[derive(Clone, Copy)]
pub(crate) struct EngineLoad {
    /// The size of each request in bytes.
    pub(crate) request: usize,
    /// The number of simultaneous requests.
    pub(crate) depth: usize,
    pub(crate) encrypts: bool,
    /// The largest number of sectors in a job. `None` stands for whole requests.
    pub(crate) max_sectors: Option<usize>,
    /// The total number of bytes.
    pub(crate) bytes: u64,
}

struct Job {
    data: Vec<u8>,
    first: u64,
    request: usize,
    encrypts: bool,
}

#[derive(Default)]
struct State {
    /// The waiting jobs, with their time and their arrival.
    jobs: VecDeque<(Job, Duration, Instant)>,
    /// The number of jobs in the engine, including the running one.
    held: usize,
    refused: usize,
    closed: bool,
}

struct Engine {
    spec: EngineSpec,
    state: Mutex<State>,
    work: Condvar,
}

impl Engine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a job, or returns it when the queue is full.
    fn submit(&self, job: Job) -> std::result::Result<(), Job> {
        let EngineSpec { fixed, bandwidth, depth, restart } = self.spec;
        let mut state = self.state();
        if state.held >= depth {
            state.refused += 1;
            return Err(job);
        }
        state.held += 1;
        let mut cost = fixed + Duration::from_secs_f64(job.data.len() as f64 / bandwidth);
        if state.refused > 0 {
            state.refused -= 1;
            cost += restart;
        }
        state.jobs.push_back((job, cost, Instant::now()));
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Runs the engine's thread.
    fn run(&self, cipher: &dyn SectorCipher, done: &mpsc::Sender<Job>) {
        // The time when the device is free: it processes its jobs whether or not this thread wakes
        // up in time.
        let mut free_at = Instant::now();
        let mut state = self.state();
        loop {
            let Some((mut job, cost, came)) = state.jobs.pop_front() else {
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let data = (&mut job.data[..]).into();
            if job.encrypts {
                cipher.encrypt(job.first, data)
            } else {
                cipher.decrypt(job.first, data)
            }
            free_at = free_at.max(came) + cost;
            sleep_until(free_at);
            state = self.state();
            state.held -= 1;
            // The submitter may have ended.
            let _ = done.send(job);
        }
    }

    fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
    }
}

/// Moves the load's bytes through an engine. Returns the rate in 10^6 bytes a second.
pub(crate) fn run(spec: EngineSpec, cipher: &Arc<dyn SectorCipher>, load: EngineLoad) -> Result<f64> {
    let engine = Engine { spec, state: Mutex::default(), work: Condvar::new() };
    let (done, finished) = mpsc::channel();
    let engine = &engine;
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("engine".into());
        worker
            .spawn_scoped(scope, move || engine.run(&**cipher, &done))
            .map_err(Error::system("no thread for the engine"))?;
        let moved = submit(engine, &finished, cipher.sector_size(), load);
        engine.close();
        moved.ok_or_else(|| Error::new(ErrorKind::System, "the engine ended early"))
    })
}

/// The submitter: requests become jobs, and finished jobs complete requests.
fn submit(
    engine: &Engine,
    finished: &mpsc::Receiver<Job>,
    sector: underseal_cipher::SectorSize,
    load: EngineLoad,
) -> Option<f64> {
    let EngineLoad { request, depth, encrypts, max_sectors, bytes } = load;
    let most = max_sectors.map_or(request, |sectors| sectors * sector.bytes()).min(request);
    let memory = vec![0x5a; request];
    let (mut result, mut spare) = (vec![0; request], Vec::new());
    // The unfinished jobs of each request; the numbers of begun and ended requests.
    let (mut left, mut begun, mut ended) = (vec![0; depth], 0, 0);
    let total = bytes.div_ceil(request as u64);
    let mut waiting = VecDeque::new();
    let started = Instant::now();
    while ended < total {
        for (number, left) in left.iter_mut().enumerate().filter(|(_, left)| **left == 0) {
            if begun < total {
                begun += 1;
                *left = request.div_ceil(most);
                waiting.extend((0..request).step_by(most).map(|at| (number, begun, at)));
            }
        }
        while let Some(&(request_number, nth, at)) = waiting.front() {
            let mut data: Vec<u8> = spare.pop().unwrap_or_default();
            data.clear();
            data.extend_from_slice(&memory[at..request.min(at + most)]);
            let first = (nth * request as u64 + at as u64) / 512;
            if let Err(Job { data, .. }) =
                engine.submit(Job { data, first, request: request_number, encrypts })
            {
                spare.push(data);
                break;
            }
            waiting.pop_front();
        }
        let job = finished.recv().ok()?;
        result[..job.data.len()].copy_from_slice(&job.data);
        left[job.request] -= 1;
        ended += u64::from(left[job.request] == 0);
        spare.push(job.data);
    }
    Some((total * request as u64) as f64 / 1e6 / started.elapsed().as_secs_f64())
}

/// Sleeps for most of the time, and polls the clock for the rest: a sleep alone ends some 60 us
/// late.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::{self, XTS};

    #[test]
    fn an_engine_takes_its_time_for_each_job() {
        let cipher = volumes::cipher(XTS, 4096).unwrap();
        let spec = EngineSpec {
            fixed: Duration::from_micros(200),
            bandwidth: f64::INFINITY,
            depth: 4,
            restart: Duration::ZERO,
        };
        let load = |max_sectors| EngineLoad {
            request: 64 << 10,
            depth: 4,
            encrypts: true,
            max_sectors,
            bytes: 1 << 20,
        };
        let at_most = |jobs: f64| (1 << 20) as f64 / 1e6 / (jobs * 200e-6);
        // A busy machine is slower, never faster.
        assert!(run(spec, &cipher, load(None)).unwrap() <= at_most(16.0) * 1.01);
        assert!(run(spec, &cipher, load(Some(1))).unwrap() <= at_most(256.0) * 1.01);
        // All but the first few jobs find the queue full.
        let slow = EngineSpec { restart: Duration::from_micros(800), ..spec };
        assert!(run(slow, &cipher, load(Some(1))).unwrap() <= at_most(5.0 * 240.0));
    }
}
