//! From the first client to the last flush.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGHUP;
use underseal_datapath::Mapping;
use underseal_export::control::OldServer;
use underseal_integrity::IntegrityDevice;

use super::control::Sides;
use super::servers::{ExportStopper, RunningExport};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::notify;
use crate::pid_file::PidFile;
use crate::reencryption::online::OnlineReencryption;
use crate::signals::{self, Taken, Woken};

/// The means to stop all exports.
#[derive(Clone)]
pub(super) struct Stoppers {
    exports: Vec<ExportStopper>,
    mapping: Arc<Mapping>,
    /// True when a device has reported that it is lost.
    lost: Arc<AtomicBool>,
    /// The old server's side of a handover, which may be under way.
    old_server: Option<Arc<OldServer>>,
}

impl Stoppers {
    pub(super) fn new(
        exports: Vec<ExportStopper>,
        mapping: &Arc<Mapping>,
        old_server: Option<Arc<OldServer>>,
    ) -> Self {
        Self { exports, mapping: mapping.clone(), lost: Arc::default(), old_server }
    }

    /// Stops the exports because a device is lost.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Stops the exports, and returns at once. A suspended volume is resumed, so that requests in
    /// flight are finished, or fail if the key is wiped.
    pub(super) fn stop(&self) {
        if self.old_server.as_ref().is_some_and(|old_server| old_server.puts_off_the_end()) {
            return log::info!("it is handed over just now: this process ends in either case");
        }
        notify::stopping();
        self.exports.iter().for_each(|export| (export.stop)());
        let mapping = self.mapping.clone();
        // The resume may wait for a suspend that is under way.
        aside("resume", move || {
            if mapping.is_stopped() {
                log::info!("suspended requests go on, to be finished");
                mapping.release();
            }
        });
    }

    /// Cleans up for a process that ends at once.
    fn abandon(&self) {
        self.exports.iter().filter_map(|export| export.abandon.as_ref()).for_each(|abandon| abandon());
    }
}

/// Serves until all exports have ended. The end of NBD ends the others, too; the end of a mount or
/// a block device does not.
fn run(exports: Vec<RunningExport>, stoppers: &Stoppers) -> Result<()> {
    thread::scope(|scope| {
        let serve = |export: RunningExport| {
            let served = (export.serve)();
            if export.leads {
                stoppers.stop();
            }
            served
        };
        let mut exports = exports.into_iter();
        // This thread serves the first export.
        let Some(first) = exports.next() else { return Ok(()) };
        let others: Vec<_> = exports.map(|export| scope.spawn(move || serve(export))).collect();
        let mut ended = vec![serve(first)];
        ended.extend(
            others
                .into_iter()
                .map(|export| export.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        // Returns the first failure, when all have ended.
        ended.into_iter().collect()
    })
}

/// Does a part of the stop that may take long, on a separate thread.
pub(super) fn aside(name: &str, part: impl FnOnce() + Send + 'static) {
    if let Err(e) = thread::Builder::new().name(name.into()).spawn(part) {
        log::warn!("stopping: no thread to {name} the volume with: {e}");
    }
}

/// The parts of a volume that end after the last client.
pub(super) struct Last<'l> {
    pub(super) reencrypter: Option<&'l OnlineReencryption>,
    pub(super) layers: &'l [Arc<IntegrityDevice>],
    /// True when the clients' bytes came through a file system here.
    pub(super) is_on_desktop: bool,
}

/// Serves until a signal arrives, the volume is closed or unmounted; finishes the requests in
/// flight, flushes the image, and closes the integrity layers. Then sends the result to the clients
/// that asked for the close. Fails with `Failed` when clients could not be ended in time; with
/// `Lost` when the flush failed (acknowledged writes may be lost then) or a device is lost, or on
/// the desktop a write has failed. A layer that could not be closed is recovered at the next open.
pub(super) fn until_stopped(
    exports: Vec<RunningExport>,
    mapping: &Arc<Mapping>,
    stoppers: &Stoppers,
    sides: Sides,
    last: &Last<'_>,
    watch: &Watch,
) -> Result<()> {
    let served = run(exports, stoppers);
    // The last step of the reencryption is on disk before the last flush.
    last.reencrypter.iter().for_each(|beside| beside.end());
    let written = if last.is_on_desktop { all_written(mapping) } else { Ok(()) };
    let flushed = flush(mapping).and_then(|()| still_there(stoppers)).and(written);
    let closed = integrity::close(last.layers);
    // Threads that wait for signals and operators still have the mapping.
    mapping.let_go();
    drop(watch.lock().pid_file.take());
    log::info!("stopped");
    // A failed flush matters more than a client that did not end.
    let ended = flushed.and(closed).and(served);
    sides.end(&ended);
    ended
}

/// The handler of signals, from before the first resource that needs a cleanup until the end. The
/// first signal ends the start or the serving, the second one the process.
#[derive(Clone)]
pub(super) struct Watch(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    interrupted: bool,
    /// `None` while the volume is not served yet.
    stoppers: Option<Stoppers>,
    pid_file: Option<PidFile>,
}

/// How long a step of the start may take after a signal, before the process ends at once.
const GRACE: Duration = Duration::from_secs(3);

impl Watch {
    /// Starts the handler's thread. Fails with `Failed` when it cannot be started.
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

    /// Checks for a signal between two steps of the start; the caller's error path undoes the
    /// earlier steps. Fails with `Failed` when a signal has arrived.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.lock().interrupted { Err(Error::new(Exit::Failed, "interrupted")) } else { Ok(()) }
    }

    /// From here on a signal stops the exports; so does one that has arrived before.
    pub(super) fn serves(&self, stoppers: &Stoppers) {
        let mut watched = self.lock();
        watched.stoppers = Some(stoppers.clone());
        if watched.interrupted {
            stoppers.stop();
        }
    }

    /// Keeps the PID file, which is removed however the process ends.
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
                // SIGHUP of a closing terminal arrives twice: from the terminal and from its shell.
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

/// Ends the process at once.
fn abandon(mut watched: MutexGuard<'_, Watched>) -> ! {
    watched.stoppers.iter().for_each(Stoppers::abandon);
    drop(watched.pid_file.take());
    std::process::exit(Exit::Failed as i32)
}

/// A volume that was only read, or is suspended, has not ended well either when its image was lost.
fn still_there(stoppers: &Stoppers) -> Result<()> {
    if stoppers.lost.load(Ordering::SeqCst) {
        let error = Error::new(Exit::Lost, "the image is lost: the log says why");
        return Err(error.with_remedy("find out who else uses it before it is opened again"));
    }
    Ok(())
}

/// Fails with `Lost` when a write has failed: a file system acknowledges bytes before it writes
/// them, so that no program may have seen the failure.
fn all_written(mapping: &Mapping) -> Result<()> {
    let stats = mapping.stats();
    match stats.writes.errors + stats.flushes.errors {
        0 => Ok(()),
        failed => {
            let what = format!("writes have failed ({failed}), so files are damaged: the log says why");
            let remedy = "have the image's disk in order, check the file system, copy the files again";
            Err(Error::new(Exit::Lost, what).with_remedy(remedy))
        }
    }
}

/// Flushes: every acknowledged write is on stable storage afterwards.
fn flush(mapping: &Arc<Mapping>) -> Result<()> {
    if mapping.read_only() {
        return Ok(());
    }
    let failed = |e: Error| {
        e.within("the last flush").into_lost().with_remedy("check the image's disk before using it again")
    };
    // Flushes without the queues, which wait while the volume is suspended. A suspended volume may
    // not be flushed: the suspend may be under way.
    mapping.flush().map_err(|e| failed(e.into()))
}
