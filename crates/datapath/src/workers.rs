//! Threads that do the crypto of others.
//!
//! ```text
//!   queue --Task--> any: one Injector, every thread takes from it     (kernel: the unbound work queue)
//!               \-> bound[cpu]: an Injector and a thread a processor  (kernel: same_cpu_crypt)
//! ```
//!
//! They are started when the first task comes. Each has channels of its own, so that it can also
//! move the bytes it crypts.

mod task;

pub(crate) use task::{CryptoWork, Task, TaskOutcome};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use underseal_device::{Channel, Device};

use crate::Affinity;
use crate::injector::Injector;

/// More threads than this are of no use to one volume.
const MOST: usize = 64;

/// A worker without work looks for so long before it sleeps: waking it costs as much.
const PATIENCE: Duration = Duration::from_micros(50);

/// A volume's workers.
pub(crate) struct Workers {
    devices: Vec<Arc<dyn Device>>,
    any: OnceLock<Group>,
    bound: OnceLock<Vec<(usize, Group)>>,
    high_priority: Arc<AtomicBool>,
}

/// Threads that take from one injector.
struct Group {
    injector: Arc<Injector<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        Self { devices, any: OnceLock::new(), bound: OnceLock::new(), high_priority: Arc::default() }
    }

    /// Whether they run before others from now on.
    pub(crate) fn set_high_priority(&self, high: bool) {
        self.high_priority.store(high, Ordering::Relaxed);
    }

    /// Hands a task over.
    ///
    /// # Errors
    /// Gives it back when there are no workers: the system has no threads left.
    #[expect(clippy::result_large_err, reason = "a box would be an allocation a request")]
    pub(crate) fn give(&self, task: Task, affinity: Affinity) -> Result<(), Task> {
        let group = match affinity {
            Affinity::Any => self.any(),
            Affinity::SameCpu => {
                let bound = self.bound.get_or_init(|| self.start_bound());
                let cpu = sched_getcpu();
                let here = bound.iter().find(|(number, _)| *number == cpu).or(bound.first());
                here.map_or_else(|| self.any(), |(_, group)| group)
            }
        };
        if group.threads.is_empty() {
            return Err(task);
        }
        group.injector.push(task)
    }

    /// Whether a worker can take one more of a queue's tasks, of which `away` are with workers: one
    /// is idle, or is at work and will come to it next. One processor is left to the caller.
    pub(crate) fn has_room(&self, away: usize) -> bool {
        let any = self.any();
        let others = any.threads.len().saturating_sub(1);
        let nobody_waits = any.injector.waiting() == 0;
        others > 0 && nobody_waits && (any.injector.idle() > 1 || (away > 0 && away < 2 * others))
    }

    /// Takes back a task of a queue's that no worker has come to.
    pub(crate) fn take_back(&self, mine: impl Fn(&Task) -> bool) -> Option<Task> {
        self.any.get()?.injector.take_back(mine)
    }

    fn any(&self) -> &Group {
        self.any.get_or_init(|| self.start(cpus().len().min(MOST), None))
    }

    fn start_bound(&self) -> Vec<(usize, Group)> {
        cpus().into_iter().map(|cpu| (cpu, self.start(1, Some(cpu)))).collect()
    }

    fn start(&self, count: usize, cpu: Option<usize>) -> Group {
        let injector = Arc::new(Injector::new());
        injector.reserve(1024);
        let threads = (0..count).filter_map(|number| {
            let name = cpu.map_or(format!("worker {number}"), |cpu| format!("worker cpu{cpu}"));
            let (devices, injector) = (self.devices.clone(), injector.clone());
            let high_priority = self.high_priority.clone();
            let thread = thread::Builder::new().name(name).spawn(move || {
                if let Some(cpu) = cpu {
                    bind(cpu);
                }
                work(&injector, &devices, &high_priority);
            });
            // With fewer threads, or none, the queues' own threads do the work.
            thread.inspect_err(|e| log::error!("cannot start a worker: {e}")).ok()
        });
        let threads = threads.collect();
        Group { injector, threads }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let groups = self.any.take().into_iter();
        let groups = groups.chain(self.bound.take().into_iter().flatten().map(|(_, group)| group));
        for group in groups.collect::<Vec<_>>() {
            group.injector.close();
            group.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

/// One worker's life.
fn work(injector: &Injector<Task>, devices: &[Arc<dyn Device>], high_priority: &AtomicBool) {
    // Without them it does the crypto only.
    let mut channels: Vec<Box<dyn Channel>> = devices.iter().filter_map(|d| d.channel(1).ok()).collect();
    if channels.len() != devices.len() {
        channels.clear();
    }
    let mut is_high = false;
    while let Some(mut task) = injector.pop(patience()) {
        let high = high_priority.load(Ordering::Relaxed);
        if high != is_high {
            is_high = high;
            prioritise(high);
        }
        // A cipher or device that panics fails one request, and costs no thread.
        let died = catch_unwind(AssertUnwindSafe(|| task.run(&mut channels))).is_err();
        if died {
            log::error!("a worker's task panicked; its request fails");
            task.outcome = TaskOutcome::Died;
        }
        task.send();
    }
}

fn patience() -> impl Iterator {
    let until = Instant::now() + PATIENCE;
    std::iter::from_fn(move || {
        std::hint::spin_loop();
        (Instant::now() < until).then_some(())
    })
}

/// The processors that this process may use.
fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn bind(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(e) = sched_setaffinity(None, &set) {
        log::warn!("cannot bind a worker to processor {cpu}: {e}");
    }
}

/// Whether threads of this process can run before others, as the policy `high-priority` wants its
/// workers to. The calling thread finds out for all of them.
///
/// # Errors
/// Why not: a user without that right, or a server that has given it up.
pub fn may_run_first() -> std::io::Result<()> {
    let own = rustix::process::getpriority_process(None)?;
    rustix::process::setpriority_process(None, HIGHEST)?;
    Ok(rustix::process::setpriority_process(None, own)?)
}

/// The nice value of the kernel's high-priority work queues.
const HIGHEST: i32 = -20;

/// As the kernel runs its high-priority work queues.
fn prioritise(high: bool) {
    let nice = if high { HIGHEST } else { 0 };
    // On Linux a thread is a process to this call.
    if let Err(e) = rustix::process::setpriority_process(None, nice) {
        log::warn!("cannot run a worker at nice {nice}: {e}");
    }
}
