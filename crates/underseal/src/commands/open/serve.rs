//! From the first client to the last flush.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::SIGHUP;
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_export::fuse::{FuseServer, FuseStopper};
use underseal_export::nbd::{Server, Stopper};
use underseal_export::ublk::{UblkServer, UblkStopper};
use underseal_export::vhost_user::{VhostUserServer, VhostUserStopper};

use super::control::Sides;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::pid_file::PidFile;
use crate::signals::{Taken, Woken};

/// The ways in to one volume: at least one.
pub(super) struct Ways {
    pub(super) nbd: Option<Server>,
    pub(super) fuse: Option<FuseServer>,
    pub(super) ublk: Option<UblkServer>,
    pub(super) vhost_user: Option<VhostUserServer>,
}

/// What stops them.
#[derive(Clone)]
pub(super) struct Stoppers {
    nbd: Option<Stopper>,
    fuse: Option<FuseStopper>,
    ublk: Option<UblkStopper>,
    vhost_user: Option<VhostUserStopper>,
    mapping: Arc<Mapping>,
}

impl Ways {
    pub(super) fn stoppers(&self, mapping: &Arc<Mapping>) -> Stoppers {
        Stoppers {
            nbd: self.nbd.as_ref().map(Server::stopper),
            fuse: self.fuse.as_ref().map(FuseServer::stopper),
            ublk: self.ublk.as_ref().map(UblkServer::stopper),
            vhost_user: self.vhost_user.as_ref().map(VhostUserServer::stopper),
            mapping: mapping.clone(),
        }
    }

    /// Serves until all have ended. When NBD ends the others go too; a mount that is unmounted leaves them alone, and so does
    /// a block device that is deleted.
    fn run(self, stoppers: &Stoppers) -> Result<()> {
        let Self { nbd, fuse, ublk, vhost_user } = self;
        thread::scope(|scope| {
            // Until it is told to stop.
            vhost_user.map(|device| scope.spawn(|| device.run()));
            let mounted = fuse.map(|fuse| scope.spawn(|| fuse.run()));
            let attached = ublk.map(|ublk| scope.spawn(|| ublk.run()));
            let served = nbd.map_or(Ok(()), |nbd| {
                let served = nbd.run();
                stoppers.stop();
                served
            });
            let ended = [mounted, attached]
                .into_iter()
                .flatten()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            let ended: Vec<_> = ended.collect();
            Ok(ended.into_iter().fold(served, |all, one| all.and(one))?)
        })
    }
}

impl Stoppers {
    /// Makes them end, and returns at once. A suspended volume goes on, so that what its clients sent is finished, or
    /// fails where its key is wiped.
    pub(super) fn stop(&self) {
        self.nbd.iter().for_each(Stopper::stop);
        self.ublk.iter().for_each(UblkStopper::stop);
        self.vhost_user.iter().for_each(VhostUserStopper::stop);
        // Unmounting can take its time, and a second signal is to be heard meanwhile.
        if let Some(fuse) = self.fuse.clone() {
            aside("unmount", move || fuse.stop());
        }
        let mapping = self.mapping.clone();
        // It may have to wait for somebody who is suspending it just now.
        aside("resume", move || {
            if mapping.is_suspended() {
                log::info!("suspended requests go on, to be finished");
                mapping.release();
            }
        });
    }

    /// For a process that ends at once.
    fn abandon(&self) {
        self.fuse.iter().for_each(FuseStopper::abandon);
    }
}

/// Does a part of the stopping that can take its time.
fn aside(name: &str, part: impl FnOnce() + Send + 'static) {
    if let Err(e) = thread::Builder::new().name(name.into()).spawn(part) {
        log::warn!("stopping: no thread to {name} the volume with: {e}");
    }
}

/// Serves until a signal comes, the volume is closed or it is unmounted; finishes what is in flight, and flushes the
/// image.
///
/// # Errors
/// `Failed` when clients could not be ended in time or the flush failed: acknowledged writes may be lost then.
pub(super) fn until_stopped(
    ways: Ways,
    mapping: &Arc<Mapping>,
    signals: Taken,
    stoppers: Stoppers,
    sides: Sides,
    pid_file: Option<PidFile>,
) -> Result<()> {
    let pid_file = Arc::new(Mutex::new(pid_file));
    let (watched, stops) = (pid_file.clone(), stoppers.clone());
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch(&signals, &stops, &watched))
        .map_err(|e| Error::new(Exit::Failed, "no thread to wait for signals").because(&e))?;

    let served = ways.run(&stoppers);
    let flushed = flush(mapping);
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
    log::info!("stopped");
    // A flush that failed matters more than a client that would not go.
    let ended = flushed.and(served);
    sides.end(&ended);
    ended
}

/// The first signal stops the server, the second one everything.
fn watch(signals: &Taken, stoppers: &Stoppers, pid_file: &Mutex<Option<PidFile>>) {
    let mut first = true;
    loop {
        match signals.wait(None) {
            Ok(Woken::Signal(number)) if first => {
                first = false;
                log::info!("signal {number}: stopping; another one stops without waiting");
                stoppers.stop();
            }
            // A terminal that closes says so twice: itself and through its shell.
            Ok(Woken::Signal(SIGHUP)) => {}
            Ok(_) => {
                log::error!("stopped without waiting: what was not flushed may be lost");
                stoppers.abandon();
                drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
                std::process::exit(Exit::Failed as i32);
            }
            Err(e) => {
                log::error!("cannot wait for signals, so stopping: {e}");
                return stoppers.stop();
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
