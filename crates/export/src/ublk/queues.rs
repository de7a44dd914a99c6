//! The threads of a device's hardware queues: ready before there is a device for them, and gone
//! while there is one.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How often threads are told that have not ended: one may have been about to sleep.
const AGAIN: Duration = Duration::from_millis(1);

/// A thread for each hardware queue. They end when this is dropped before they have
/// [begun](Self::begin).
pub(super) struct Queues {
    threads: Vec<JoinHandle<()>>,
    /// What each waits for, until it has come.
    begin: Vec<Sender<Arc<File>>>,
    /// What each says once it has its queue, and once the driver has its fetches.
    said: Vec<Receiver<Result<()>>>,
    end: Arc<End>,
    lets_go: Arc<AtomicBool>,
}

/// How the first thread has ended that had begun, until that is asked for.
#[derive(Default)]
struct End {
    has_come: AtomicBool,
    how: Mutex<Option<Result<()>>>,
}

impl Queues {
    /// Starts the threads, and waits until each has what it needs besides the device. Each says so
    /// when it has ended, unless it was told to [let go](Self::let_go).
    ///
    /// # Errors
    /// `Ublk` when there is no thread for one, `Io` when the system has no ring or memory for its
    /// queue.
    pub(super) fn prepare(
        mapping: &Arc<Mapping>,
        info: &sys::ublksrv_ctrl_dev_info,
        unprivileged: bool,
        ended: &Sender<Message>,
    ) -> Result<Self> {
        let (end, lets_go) = (Arc::default(), Arc::<AtomicBool>::default());
        let mut this = Self { threads: vec![], begin: vec![], said: vec![], end, lets_go };
        for number in 0..info.nr_hw_queues {
            let part = Part {
                mapping: mapping.clone(),
                number,
                depth: info.queue_depth,
                longest: info.max_io_buf_bytes as usize,
                unprivileged,
                lets_go: this.lets_go.clone(),
            };
            let ((begin, begins), (says, said), ended) = (mpsc::channel(), mpsc::channel(), ended.clone());
            let (end, lets_go) = (this.end.clone(), this.lets_go.clone());
            let thread = thread::Builder::new().name(format!("ublk-{number}")).spawn(move || {
                let Some(result) = serve(part, &says, &begins) else { return };
                end.comes(result);
                if !lets_go.load(Ordering::SeqCst) {
                    // Nobody listens at the very end.
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

    /// Gives the driver's side of the device to each thread, and waits until all fetch requests.
    ///
    /// # Errors
    /// `Ublk` when the driver refuses.
    pub(super) fn begin(&mut self, file: &Arc<File>) -> Result<()> {
        for begin in self.begin.drain(..) {
            // One that is gone says nothing below.
            let _ = begin.send(file.clone());
        }
        self.all_say()
    }

    /// Whether a thread has ended that had begun.
    pub(super) fn have_ended(&self) -> bool {
        self.end.has_come.load(Ordering::SeqCst)
    }

    /// How the first of them has ended; once.
    pub(super) fn end(&self) -> Option<Result<()>> {
        self.end.how().take()
    }

    /// Ends the threads while the driver has requests for them: whoever recovers the device gets
    /// those again. Nothing may be in flight, so the volume is suspended.
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

    /// Waits until the threads have ended, of a device that was stopped.
    pub(super) fn join(mut self) {
        self.begin.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Waits for what each thread says next; the first failure.
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

/// A thread's life; how it ended, if it had begun.
fn serve(part: Part, says: &Sender<Result<()>>, begins: &Receiver<Arc<File>>) -> Option<Result<()>> {
    // Who listens no more has given up.
    let queue = part.queue().map_err(|e| says.send(Err(e))).ok()?;
    says.send(Ok(())).ok()?;
    let file = begins.recv().ok()?;
    let worker = Worker::new(part, queue, file).map_err(|e| says.send(Err(e))).ok()?;
    says.send(Ok(())).ok()?;
    Some(worker.run())
}
