//! The threads of a device's hardware queues: they start before the device exists, and end before
//! it is deleted.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::abi as sys;
use underseal_datapath::Mapping;

use super::claim::refused;
use super::server::Message;
use super::worker::{Part, Worker};
use crate::Result;

/// How often the threads are woken again: a thread may have missed a wakeup as it went to sleep.
const AGAIN: Duration = Duration::from_millis(1);

/// A thread for each hardware queue. The threads end when this is dropped before they have
/// [begun](Self::begin).
pub(super) struct Queues {
    threads: Vec<JoinHandle<()>>,
    /// The device's file for each thread; empty once the threads have begun.
    begin: Vec<Sender<Arc<File>>>,
    /// The reports of each thread: first that it has a queue, then that the driver has its fetches.
    said: Vec<Receiver<Result<()>>>,
    end: Arc<End>,
    lets_go: Arc<AtomicBool>,
    gate: Arc<RequestGate>,
}

/// Keeps requests of the driver waiting in threads that have begun. Linux from 6.15 on hands out
/// the requests of a recovered device once all queues fetch, before the recovery ends.
#[derive(Default)]
pub(super) struct RequestGate {
    is_open: AtomicBool,
    /// The number of threads that have seen it open.
    passed: AtomicUsize,
}

impl RequestGate {
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Records that the calling thread has seen it open.
    pub(super) fn pass(&self) {
        self.passed.fetch_add(1, Ordering::SeqCst);
    }
}

/// The result of the first thread that ended after it had begun.
#[derive(Default)]
struct End {
    has_come: AtomicBool,
    how: Mutex<Option<Result<()>>>,
}

impl Queues {
    /// Starts the threads, and waits until each has everything except the device. Each sends
    /// `Message::Ended` when it has ended, unless [`let_go`](Self::let_go) ended it. Fails with
    /// `Ublk` when a thread cannot be started, with `Io` when the system has no ring or memory for
    /// its queue.
    pub(super) fn prepare(
        mapping: &Arc<Mapping>,
        info: &sys::ublksrv_ctrl_dev_info,
        unprivileged: bool,
        ended: &Sender<Message>,
    ) -> Result<Self> {
        let (end, lets_go, gate) = (Arc::default(), Arc::<AtomicBool>::default(), Arc::default());
        let mut this = Self { threads: vec![], begin: vec![], said: vec![], end, lets_go, gate };
        for number in 0..info.nr_hw_queues {
            let part = Part {
                mapping: mapping.clone(),
                number,
                depth: info.queue_depth,
                longest: info.max_io_buf_bytes as usize,
                unprivileged,
                lets_go: this.lets_go.clone(),
                gate: this.gate.clone(),
            };
            let ((begin, begins), (says, said), ended) = (mpsc::channel(), mpsc::channel(), ended.clone());
            let (end, lets_go) = (this.end.clone(), this.lets_go.clone());
            let thread = thread::Builder::new().name(format!("ublk-{number}")).spawn(move || {
                let Some(result) = serve(part, &says, &begins) else { return };
                end.comes(result);
                if !lets_go.load(Ordering::SeqCst) {
                    // At the very end the receiver is gone.
                    let _ = ended.send(Message::Ended);
                }
            });
            this.begin.push(begin);
            this.said.push(said);
            this.threads.push(thread.map_err(|e| refused("no thread for a queue".into(), e))?);
        }
        this.all_say()?;
        Ok(this)
    }

    /// Sends each thread the device's file, and waits until all fetch requests, which wait until
    /// they are [admitted](Self::admit). Fails with `Ublk` when the driver refuses.
    pub(super) fn begin(&mut self, file: &Arc<File>) -> Result<()> {
        for begin in self.begin.drain(..) {
            // A thread that has ended sends no report, which `all_say` finds out.
            let _ = begin.send(file.clone());
        }
        self.all_say()
    }

    /// Serves the driver's requests, those that have waited first.
    pub(super) fn admit(&self, mapping: &Mapping) {
        self.gate.is_open.store(true, Ordering::SeqCst);
        while self.gate.passed.load(Ordering::SeqCst) < self.threads.len() && !self.have_ended() {
            mapping.rouse();
            thread::sleep(AGAIN);
        }
    }

    /// Returns true when a thread has ended that had begun.
    pub(super) fn have_ended(&self) -> bool {
        self.end.has_come.load(Ordering::SeqCst)
    }

    /// Returns the result of the first of them, once.
    pub(super) fn end(&self) -> Option<Result<()>> {
        self.end.how().take()
    }

    /// Ends the threads while the driver has requests for them: the server that recovers the device
    /// gets these again. No request may be in flight, so the volume is suspended.
    pub(super) fn let_go(mut self, mapping: &Mapping) {
        self.lets_go.store(true, Ordering::SeqCst);
        self.begin.clear();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                mapping.rouse();
                thread::sleep(AGAIN);
            }
            let _ = thread.join();
        }
    }

    /// Waits until the threads have ended, after the device was stopped.
    pub(super) fn join(mut self) {
        self.begin.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Waits for the next report of each thread, and returns the first failure.
    fn all_say(&self) -> Result<()> {
        let says = |said: &Receiver<Result<()>>| {
            let gone = |_| Err(refused("a queue".into(), std::io::ErrorKind::BrokenPipe.into()));
            said.recv().unwrap_or_else(gone)
        };
        self.said.iter().try_for_each(says)
    }
}

impl End {
    fn comes(&self, result: Result<()>) {
        let mut how = self.how();
        if !self.has_come.swap(true, Ordering::SeqCst) {
            *how = Some(result);
        }
    }

    fn how(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.how.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a thread; returns its result if it had begun.
fn serve(part: Part, says: &Sender<Result<()>>, begins: &Receiver<Arc<File>>) -> Option<Result<()>> {
    // A closed channel means that the starting thread has given up.
    let queue = part.queue().map_err(|e| says.send(Err(e))).ok()?;
    says.send(Ok(())).ok()?;
    let file = begins.recv().ok()?;
    let worker = Worker::new(part, queue, file).map_err(|e| says.send(Err(e))).ok()?;
    says.send(Ok(())).ok()?;
    Some(worker.run())
}
