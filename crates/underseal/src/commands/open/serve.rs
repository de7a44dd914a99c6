//! From the first client to the last flush.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::SIGHUP;
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_export::nbd::Server;

use super::control::Sides;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::pid_file::PidFile;
use crate::signals::{Taken, Woken};

/// Serves until a signal comes, finishes what is in flight, and flushes the image.
///
/// # Errors
/// `Failed` when connections could not be ended in time or the flush failed: acknowledged writes may be lost then.
pub(super) fn until_stopped(
    server: Server,
    mapping: &Arc<Mapping>,
    signals: Taken,
    stop: impl Fn() + Send + 'static,
    sides: Sides,
    pid_file: Option<PidFile>,
) -> Result<()> {
    let pid_file = Arc::new(Mutex::new(pid_file));
    let watched = pid_file.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch(&signals, &stop, &watched))
        .map_err(|e| Error::new(Exit::Failed, "no thread to wait for signals").because(&e))?;

    let served = server.run().map_err(Error::from);
    let flushed = flush(mapping);
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
    log::info!("stopped");
    // A flush that failed matters more than a client that would not go.
    let ended = flushed.and(served);
    sides.end(&ended);
    ended
}

/// What makes the server end. A suspended volume goes on, so that what its clients sent is finished, or
/// fails where its key is wiped.
pub(super) fn stop(server: &Server, mapping: &Arc<Mapping>) -> impl Fn() + Clone + Send + Sync + 'static {
    let (stopper, mapping) = (server.stopper(), mapping.clone());
    move || {
        stopper.stop();
        let mapping = mapping.clone();
        // It may have to wait for somebody who is suspending it just now.
        let resume = move || {
            if mapping.is_suspended() {
                log::info!("suspended requests go on, to be finished");
                mapping.release();
            }
        };
        if let Err(e) = thread::Builder::new().name("resume".into()).spawn(resume) {
            log::warn!("stopping: no thread to resume the volume with, if it is suspended: {e}");
        }
    }
}

/// The first signal stops the server, the second one everything.
fn watch(signals: &Taken, stop: &impl Fn(), pid_file: &Mutex<Option<PidFile>>) {
    let mut first = true;
    loop {
        match signals.wait(None) {
            Ok(Woken::Signal(number)) if first => {
                first = false;
                log::info!("signal {number}: stopping; another one stops without waiting");
                stop();
            }
            // A terminal that closes says so twice: itself and through its shell.
            Ok(Woken::Signal(SIGHUP)) => {}
            Ok(_) => {
                log::error!("stopped without waiting: what was not flushed may be lost");
                drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
                std::process::exit(Exit::Failed as i32);
            }
            Err(e) => {
                log::error!("cannot wait for signals, so stopping: {e}");
                return stop();
            }
        }
    }
}

/// Everything that clients were told is written is on stable storage after this.
fn flush(mapping: &Arc<Mapping>) -> Result<()> {
    // Suspending has flushed, and nothing was written since. A queue would wait for the volume to go on.
    if mapping.read_only() || mapping.is_suspended() {
        return Ok(());
    }
    let failed =
        |e: Error| e.within("the last flush").with_remedy("check the image's disk before using it again");
    let mut queue = Queue::open(mapping.clone(), QueueOptions { depth: 1, max_request: 4096 })?;
    // A new queue has room for one request.
    let _ = queue.submit(0, Request::Flush);
    loop {
        if let Some(completion) = queue.next_completion() {
            return completion.result.map_err(|e| failed(e.into()));
        }
        queue.wait().map_err(|e| failed(Error::new(Exit::Failed, "waiting").because(&e)))?;
    }
}
