//! Workers: threads that do crypto for queues.
//!
//! ```text
//!   queue --Task--> any: one Injector for all threads                (kernel: unbound work queue)
//!               \-> bound[cpu]: an Injector and a thread a processor  (kernel: same_cpu_crypt)
//! ```
//!
//! Workers are started for the first task. Each has channels, so that it can also read and write
//! the bytes that it decrypts or encrypts.

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

/// The largest number of workers of a volume.
const MOST: usize = 64;

/// The time for which a worker looks for work before it sleeps: a wakeup costs as much.
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

    /// Sets whether workers run before other threads.
    pub(crate) fn set_high_priority(&self, high: bool) {
        self.high_priority.store(high, Ordering::Relaxed);
    }

    /// Hands a task over. Returns the task when there are no workers, since the system has no
    /// threads left.
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

    /// True when a worker can take one more of a queue's tasks, of which `away` are with workers: a
    /// worker is idle, or will come to the task next. One processor is left to the caller.
    pub(crate) fn has_room(&self, away: usize) -> bool {
        let any = self.any();
        let others = any.threads.len().saturating_sub(1);
        let nobody_waits = any.injector.waiting() == 0;
        others > 0 && nobody_waits && (any.injector.idle() > 1 || (away > 0 && away < 2 * others))
    }

    /// Takes back a queue's task that no worker has begun.
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
            // With fewer threads, or without any, the queues' threads do the work.
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

/// A worker's loop.
fn work(injector: &Injector<Task>, devices: &[Arc<dyn Device>], high_priority: &AtomicBool) {
    // Without channels a worker only does crypto.
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
        // A cipher or device that panics fails one request, and ends no thread.
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

/// Tries whether threads of this process may run before others, as the policy `high-priority`
/// demands of workers. The calling thread tries for all of them.
///
/// # Errors
/// The kernel's: the user lacks that right, or the server has dropped it.
pub fn may_run_first() -> std::io::Result<()> {
    let own = rustix::process::getpriority_process(None)?;
    rustix::process::setpriority_process(None, HIGHEST)?;
    Ok(rustix::process::setpriority_process(None, own)?)
}

/// The nice value of the kernel's high-priority work queues.
const HIGHEST: i32 = -20;

/// Sets the calling thread's priority, as the kernel does for high-priority work queues.
fn prioritise(high: bool) {
    let nice = if high { HIGHEST } else { 0 };
    // On Linux this call treats a thread as a process.
    if let Err(e) = rustix::process::setpriority_process(None, nice) {
        log::warn!("cannot run a worker at nice {nice}: {e}");
    }
}
