//! From the first client to the last flush.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::SIGHUP;
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_export::nbd::{Server, Stopper};

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
    pid_file: Option<PidFile>,
) -> Result<()> {
    let stopper = server.stopper();
    let pid_file = Arc::new(Mutex::new(pid_file));
    let watched = pid_file.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch(&signals, &stopper, &watched))
        .map_err(|e| Error::new(Exit::Failed, "no thread to wait for signals").because(&e))?;

    let served = server.run().map_err(Error::from);
    let flushed = flush(mapping);
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
    log::info!("stopped");
    // A flush that failed matters more than a client that would not go.
    flushed.and(served)
}

/// The first signal stops the server, the second one everything.
fn watch(signals: &Taken, stopper: &Stopper, pid_file: &Mutex<Option<PidFile>>) {
    let mut first = true;
    loop {
        match signals.wait(None) {
            Ok(Woken::Signal(number)) if first => {
                first = false;
                log::info!("signal {number}: stopping; another one stops without waiting");
                stopper.stop();
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
                return stopper.stop();
            }
        }
    }
}

/// Everything that clients were told is written is on stable storage after this.
fn flush(mapping: &Arc<Mapping>) -> Result<()> {
    if mapping.read_only() {
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
