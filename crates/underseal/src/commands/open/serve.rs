//! From the first client to the last flush.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGHUP;
use underseal_datapath::Mapping;
use underseal_export::TellSize;
use underseal_export::control::Giver;
use underseal_export::fuse::FuseServer;
use underseal_export::nbd::Server;
use underseal_export::ublk::UblkServer;
use underseal_export::vhost_user::VhostUserServer;
use underseal_integrity::IntegrityDevice;

use super::control::Sides;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::notify;
use crate::pid_file::PidFile;
use crate::reencryption::beside::Beside;
use crate::signals::{self, Taken, Woken};

/// A way in to a volume: what serves it, and what ends that.
pub(super) struct Way {
    serve: Box<dyn FnOnce() -> Result<()> + Send>,
    stopper: Stopper,
    /// Tells its clients of another size, where they can be told.
    tell_size: Option<TellSize>,
    /// When it ends, the others are ended too.
    leads: bool,
}

#[derive(Clone)]
struct Stopper {
    stop: Arc<dyn Fn() + Send + Sync>,
    /// What is left to do when the process ends without waiting.
    abandon: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Way {
    fn new(
        serve: impl FnOnce() -> underseal_export::Result<()> + Send + 'static,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let stopper = Stopper { stop: Arc::new(stop), abandon: None };
        Self { serve: Box::new(|| Ok(serve()?)), stopper, tell_size: None, leads: false }
    }

    pub(super) fn tells_size(&self) -> Option<TellSize> {
        self.tell_size.clone()
    }
}

impl From<Server> for Way {
    fn from(server: Server) -> Self {
        let stopper = server.stopper();
        Self { leads: true, ..Self::new(|| server.run(), move || stopper.stop()) }
    }
}

impl From<FuseServer> for Way {
    fn from(server: FuseServer) -> Self {
        let (stopper, last) = (server.stopper(), server.stopper());
        // Unmounting can take its time, and a second signal is to be heard meanwhile.
        let stop = move || {
            let stopper = stopper.clone();
            aside("unmount", move || stopper.stop());
        };
        let tell_size = Some(server.size_teller());
        let mut way = Self { tell_size, ..Self::new(|| server.run(), stop) };
        way.stopper.abandon = Some(Arc::new(move || last.abandon()));
        way
    }
}

impl From<UblkServer> for Way {
    fn from(server: UblkServer) -> Self {
        let (stopper, tell_size) = (server.stopper(), Some(server.size_teller()));
        Self { tell_size, ..Self::new(|| server.run(), move || stopper.stop()) }
    }
}

impl From<VhostUserServer> for Way {
    fn from(server: VhostUserServer) -> Self {
        let (stopper, tell_size) = (server.stopper(), Some(server.size_teller()));
        Self { tell_size, ..Self::new(|| server.run(), move || stopper.stop()) }
    }
}

/// What stops them all.
#[derive(Clone)]
pub(super) struct Stoppers {
    ways: Vec<Stopper>,
    mapping: Arc<Mapping>,
    /// A device has said that nothing can be read or written any more.
    lost: Arc<AtomicBool>,
    /// What may be giving the volume to another process.
    giver: Option<Arc<Giver>>,
}

impl Stoppers {
    pub(super) fn of(ways: &[Way], mapping: &Arc<Mapping>, giver: Option<Arc<Giver>>) -> Self {
        let ways = ways.iter().map(|way| way.stopper.clone()).collect();
        Self { ways, mapping: mapping.clone(), lost: Arc::default(), giver }
    }

    /// And an NBD server, whose way is not made yet.
    pub(super) fn with(mut self, server: underseal_export::nbd::Stopper) -> Self {
        self.ways.push(Stopper { stop: Arc::new(move || server.stop()), abandon: None });
        self
    }

    /// Makes them end since a device is lost.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Makes them end, and returns at once. A suspended volume goes on, so that what its clients
    /// sent is finished, or fails where its key is wiped.
    pub(super) fn stop(&self) {
        if self.giver.as_ref().is_some_and(|giver| giver.puts_off_the_end()) {
            return log::info!("it is handed over just now: this process ends in either case");
        }
        notify::stopping();
        self.ways.iter().for_each(|way| (way.stop)());
        let mapping = self.mapping.clone();
        // It may have to wait for somebody who is suspending it just now.
        aside("resume", move || {
            if mapping.is_stopped() {
                log::info!("suspended requests go on, to be finished");
                mapping.release();
            }
        });
    }

    /// For a process that ends at once.
    fn abandon(&self) {
        self.ways.iter().filter_map(|way| way.abandon.as_ref()).for_each(|abandon| abandon());
    }
}

/// Serves until all have ended. When NBD ends the others go too; a mount that is unmounted leaves
/// them alone, and so does a block device that is deleted.
fn run(ways: Vec<Way>, stoppers: &Stoppers) -> Result<()> {
    thread::scope(|scope| {
        let serve = |way: Way| {
            let served = (way.serve)();
            if way.leads {
                stoppers.stop();
            }
            served
        };
        let mut ways = ways.into_iter();
        // This thread has nothing else to do.
        let Some(first) = ways.next() else { return Ok(()) };
        let others: Vec<_> = ways.map(|way| scope.spawn(move || serve(way))).collect();
        let mut ended = vec![serve(first)];
        ended.extend(
            others.into_iter().map(|way| way.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        // The first failure, when all are over.
        ended.into_iter().collect()
    })
}

/// Does a part of the stopping that can take its time.
fn aside(name: &str, part: impl FnOnce() + Send + 'static) {
    if let Err(e) = thread::Builder::new().name(name.into()).spawn(part) {
        log::warn!("stopping: no thread to {name} the volume with: {e}");
    }
}

/// What is ended when no client is left.
pub(super) struct Last<'l> {
    pub(super) reencrypter: Option<&'l Beside>,
    pub(super) layers: &'l [Arc<IntegrityDevice>],
}

/// Serves until a signal comes, the volume is closed or it is unmounted; finishes what is in
/// flight, flushes the image, and closes what lies between. Whoever has the volume closed is told
/// then.
///
/// # Errors
/// `Failed` when clients could not be ended in time. `Lost` when the flush failed: acknowledged
/// writes may be lost then; or when a device is lost. Those of a layer that could not be closed: it
/// is put in order by whoever opens it next.
pub(super) fn until_stopped(
    ways: Vec<Way>,
    mapping: &Arc<Mapping>,
    stoppers: &Stoppers,
    sides: Sides,
    last: &Last<'_>,
    watch: &Watch,
) -> Result<()> {
    let served = run(ways, stoppers);
    // Its last step is on disk before the last flush.
    last.reencrypter.iter().for_each(|beside| beside.end());
    let flushed = flush(mapping).and_then(|()| still_there(stoppers));
    let closed = integrity::close(last.layers);
    // Threads that wait for signals and operators still have it.
    mapping.let_go();
    drop(watch.lock().pid_file.take());
    log::info!("stopped");
    // A flush that failed matters more than a client that would not go.
    let ended = flushed.and(closed).and(served);
    sides.end(&ended);
    ended
}

/// Listens to signals, from before there is anything to put in order until the end. The first one
/// ends the start or the serving, the second one everything.
#[derive(Clone)]
pub(super) struct Watch(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    interrupted: bool,
    /// None while the volume is not served yet.
    stoppers: Option<Stoppers>,
    pid_file: Option<PidFile>,
}

/// What a step of the start may take after a signal, until it is not waited for any more.
const GRACE: Duration = Duration::from_secs(3);

impl Watch {
    /// # Errors
    /// `Failed` when there is no thread for it.
    pub(super) fn start(taken: Taken) -> Result<Self> {
        let this = Self(Arc::default());
        let watch = this.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || watch.listen(&taken))
            .and_then(|_| signals::leave_to_others(signals::ENDING))
            .map_err(|e| Error::new(Exit::Failed, "no thread to wait for signals").because(&e))?;
        Ok(this)
    }

    /// Between two steps of the start: what was begun so far is undone by whoever gets the error.
    ///
    /// # Errors
    /// `Failed` when a signal has come.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.lock().interrupted { Err(Error::new(Exit::Failed, "interrupted")) } else { Ok(()) }
    }

    /// From here on a signal ends what is served; so does one that has come.
    pub(super) fn serves(&self, stoppers: &Stoppers) {
        let mut watched = self.lock();
        watched.stoppers = Some(stoppers.clone());
        if watched.interrupted {
            stoppers.stop();
        }
    }

    /// Sees to it that the file is removed, however the process ends.
    pub(super) fn keep(&self, pid_file: Option<PidFile>) {
        self.lock().pid_file = pid_file;
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, taken: &Taken) {
        loop {
            let woken = taken.wait(None);
            let mut watched = self.lock();
            let first = !std::mem::replace(&mut watched.interrupted, true);
            match (woken, &watched.stoppers) {
                (Ok(Woken::Signal(number)), Some(stoppers)) if first => {
                    log::info!("signal {number}: stopping; another one stops without waiting");
                    stoppers.stop();
                }
                (Ok(Woken::Signal(number)), None) if first => {
                    log::info!("signal {number}: not served after all; another one stops without waiting");
                    let this = self.clone();
                    aside("interrupt", move || {
                        thread::sleep(GRACE);
                        let watched = this.lock();
                        if watched.stoppers.is_none() {
                            log::error!("interrupted: a step of the start takes longer than {GRACE:?}");
                            abandon(watched);
                        }
                    });
                }
                // A terminal that closes says so twice: itself and through its shell.
                (Ok(Woken::Signal(SIGHUP)), _) => {}
                (Ok(_), _) => {
                    log::error!("stopped without waiting: what was not flushed may be lost");
                    abandon(watched);
                }
                (Err(e), stoppers) => {
                    log::error!("cannot wait for signals, so stopping: {e}");
                    return stoppers.iter().for_each(Stoppers::stop);
                }
            }
        }
    }
}

/// Ends the process as it is.
fn abandon(mut watched: MutexGuard<'_, Watched>) -> ! {
    watched.stoppers.iter().for_each(Stoppers::abandon);
    drop(watched.pid_file.take());
    std::process::exit(Exit::Failed as i32)
}

/// Also who only reads, or is suspended, has not ended well when the image was taken away.
fn still_there(stoppers: &Stoppers) -> Result<()> {
    if stoppers.lost.load(Ordering::SeqCst) {
        let error = Error::new(Exit::Lost, "the image is lost: the log says why");
        return Err(error.with_remedy("find out who else uses it before it is opened again"));
    }
    Ok(())
}

/// Everything that clients were told is written is on stable storage after this.
fn flush(mapping: &Arc<Mapping>) -> Result<()> {
    if mapping.read_only() {
        return Ok(());
    }
    let failed = |e: Error| {
        e.within("the last flush").into_lost().with_remedy("check the image's disk before using it again")
    };
    // Past the queues, which wait while the volume is suspended. That it is suspended does not say
    // that it was flushed: a suspension may be under way.
    mapping.flush().map_err(|e| failed(e.into()))
}
