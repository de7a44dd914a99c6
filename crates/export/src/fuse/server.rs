//! From the mount to its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use underseal_datapath::Mapping;
use underseal_fuse::{FuseChannel, FuseSession, Point, RingShare};

use super::INBOX;
use super::files::Files;
use super::hold::{CarriedMount, Hold, namespace};
use super::mount::{MountPoint, mount};
use super::transport::FuseTransport;
use super::turns::Turns;
use super::worker::Worker;
use crate::{Error, ErrorKind, Result, TellSize};

/// The largest block: the kernel writes pages of this size, several threads at once.
const LARGEST_BLOCK: u32 = 4096;

/// What the kernel keeps of a file in one piece.
const PAGE: u64 = 4096;

/// How long a thread has to end its last requests once it is too late for more.
const CUT_OFF: Duration = Duration::from_secs(5);

/// How a volume is shown.
#[derive(Debug, Clone)]
pub struct FuseConfig {
    /// Threads that serve requests, each with a queue and a descriptor of its own.
    pub threads: u16,
    /// Let root in too: for a loop device over another user's mount.
    pub allow_root: bool,
    /// Let the kernel keep pages of the files. Off where the volume is written to by another way
    /// too.
    pub cache: bool,
    /// Take requests through io_uring, where the kernel offers that. Off where another process may
    /// take the mount over: the kernel knows no way to pass entries on.
    pub io_uring: bool,
    /// How long those who have files open when the server stops may go on with them.
    pub drain_timeout: Duration,
}

impl Default for FuseConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            allow_root: false,
            cache: true,
            io_uring: true,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A mounted volume that is being served.
pub struct FuseServer {
    shared: Arc<Shared>,
    /// For what the kernel did not ask: nothing comes in here.
    teller: Arc<FuseChannel>,
    session: FuseSession,
    point: Arc<Point>,
    transport: FuseTransport,
    drain_timeout: Duration,
}

/// Ends the serving from any thread.
#[derive(Clone)]
pub struct FuseStopper(Arc<Shared>, Arc<Point>);

/// What all threads see.
pub(super) struct Shared {
    pub(super) mapping: Arc<Mapping>,
    pub(super) files: Files,
    pub(super) cache: bool,
    pub(super) turns: Turns,
    pub(super) hold: Hold,
    /// Requests come through io_uring, and hardly any through the descriptor.
    pub(super) over_io_uring: AtomicBool,
    /// No more requests are to be taken.
    pub(super) cut_off: AtomicBool,
    /// A thread was told by the kernel that the mount is gone.
    gone: AtomicBool,
    pub(super) path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    threads: usize,
    stopping: Option<Instant>,
    /// The stopper has unmounted it, and nobody used that mount.
    is_unmounted: bool,
}

impl Shared {
    /// `is_held`: its threads rest until they are let go on.
    pub(super) fn new(
        mapping: Arc<Mapping>,
        files: Files,
        cache: bool,
        path: PathBuf,
        is_held: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            mapping,
            files,
            cache,
            turns: Turns::new()?,
            hold: Hold::new(is_held),
            over_io_uring: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            path,
            state: Mutex::new(State { threads: 0, stopping: None, is_unmounted: false }),
            changed: Condvar::new(),
        })
    }
}

impl FuseServer {
    /// Mounts the volume: over a file as that file, in a folder as a file for each segment.
    /// Requests are served from here on.
    ///
    /// # Errors
    /// `Unsupported` when its [blocks](Mapping::with_block) are larger than the kernel's pages, or
    /// it does not take [any bytes](Mapping::with_bytes), as writers of files expect; `Mount` when
    /// the system refuses; `Io` when there is no queue, descriptor or thread for it.
    pub fn mount(mapping: Arc<Mapping>, point: &MountPoint, config: &FuseConfig) -> Result<Self> {
        fits(&mapping)?;
        let off = || Err("io_uring is off for this mount".into());
        let queues = if config.io_uring { underseal_fuse::queues() } else { off() };
        let session = mount(point, mapping.read_only(), config.allow_root, queues.is_ok())?;
        let queues = queues.and_then(|queues| {
            session.is_over_io_uring().then_some(queues).ok_or_else(underseal_fuse::not_offered)
        });
        Self::serve(mapping, point, session, config, None, queues)
    }

    /// Takes the mount of another process over, which serves it until
    /// [`FuseHolder::go_on`](super::FuseHolder::go_on): from then on this one does. Dropped before,
    /// it leaves the mount as it is.
    ///
    /// # Errors
    /// As for [`mount`](Self::mount), but for the system's refusal to mount; `Unsupported` where
    /// the mount cannot be seen from here, or more was agreed on than is known here.
    pub fn take_over(
        mapping: Arc<Mapping>,
        point: &MountPoint,
        CarriedMount { device, place }: CarriedMount,
        config: &FuseConfig,
    ) -> Result<Self> {
        fits(&mapping)?;
        let no =
            |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("{}: {why}", place.path.display())));
        if place.namespace != namespace()? {
            // What is unmounted here would stay there.
            return no("it is mounted in another mount namespace than this process is in");
        }
        if place.longest > INBOX {
            return no("the kernel was promised longer writes than this version takes");
        }
        let (session, carried) = (FuseSession::over(device), Some((place.since, place.gid)));
        Self::serve(mapping, point, session, config, carried, Err("the mount was taken over".into()))
    }

    fn serve(
        mapping: Arc<Mapping>,
        point: &MountPoint,
        session: FuseSession,
        config: &FuseConfig,
        carried: Option<(u64, u32)>,
        queues: std::result::Result<u16, String>,
    ) -> Result<Self> {
        let files = if point.is_folder() { Files::folder(&mapping) } else { Files::one(&mapping) };
        let is_held = carried.is_some();
        let files = carried.into_iter().fold(files, Files::with);
        let path = point.path().to_owned();
        let shared = Arc::new(Shared::new(mapping, files, config.cache, path, is_held).map_err(no_thread)?);
        // On the way out through an error the mount goes, and with it those threads that have
        // begun.
        let (ready, begun) = mpsc::channel();
        let threads = config.threads.max(1);
        for number in 0..threads {
            let channel = session.channel(false).map_err(no_thread)?;
            let queues = queues.as_ref().ok();
            let share = queues.map(|queues| RingShare::of(number, threads, *queues, INBOX as usize));
            let (presence, ready) = (Presence::new(&shared), ready.clone());
            thread::Builder::new()
                .name(format!("fuse-{number}"))
                .spawn(move || serve(&presence.0, channel, share.as_ref(), ready))
                .map_err(no_thread)?;
        }
        drop(ready);
        let refused: Vec<Option<String>> = begun.iter().collect::<Result<_>>()?;
        let transport = match queues.map(|_| refused.into_iter().flatten().next()) {
            Ok(None) => {
                shared.over_io_uring.store(true, Ordering::Relaxed);
                FuseTransport::IoUring
            }
            Ok(Some(why)) | Err(why) => FuseTransport::Device(why),
        };
        let teller = Arc::new(session.channel(false).map_err(no_thread)?);
        log::info!("serving {} through FUSE, {transport}", shared.path.display());
        let point = point.point().clone();
        Ok(Self { shared, teller, session, point, transport, drain_timeout: config.drain_timeout })
    }

    /// What stops this server.
    pub fn stopper(&self) -> FuseStopper {
        FuseStopper(self.shared.clone(), self.point.clone())
    }

    /// How requests come from the kernel.
    pub fn transport(&self) -> &FuseTransport {
        &self.transport
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What requests come from.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }

    /// Makes the kernel see another size of the volume: it asks for the file's attributes again,
    /// and forgets what it has of its pages beyond the smaller end. While the volume is suspended
    /// pages may wait for it to go on, and are left: the kernel drops them itself when it learns of
    /// the size.
    pub fn size_teller(&self) -> TellSize {
        let (shared, teller) = (self.shared.clone(), self.teller.clone());
        Arc::new(move |from, to| {
            let (node, begins) = shared.files.last();
            let page = from.min(to).saturating_sub(begins) / PAGE * PAGE;
            let pages = (!shared.mapping.is_suspended()).then_some(page);
            let path = shared.path.display();
            let told = teller.forget(node, pages);
            told.err().map(|e| format!("{path} has its new size in a second: the kernel was not told: {e}"))
        })
    }

    /// Waits until the volume is unmounted, by the stopper or by anybody else, and nobody has it
    /// open.
    ///
    /// # Errors
    /// `Drain` when it was still open [`drain_timeout`](FuseConfig::drain_timeout) after the
    /// stopper was used: those who have it open get errors when this process ends. `Io` when the
    /// mount's connection was aborted; it is unmounted then.
    pub fn run(self) -> Result<()> {
        let mut state = self.shared.lock();
        while state.threads > 0 {
            let left = state.stopping.map(|since| self.drain_timeout.saturating_sub(since.elapsed()));
            state = match left {
                None => self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    drop(state);
                    return self.cut_off();
                }
                Some(left) => {
                    let waited = self.shared.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        drop(state);
        if !self.shared.is_gone() {
            // All threads have failed: nobody would answer those who look at the mount.
            self.stopper().abandon();
        }
        let shown = self.shared.path.display();
        if self.session.close() {
            let aborted = format!("the connection of {shown} was aborted, and it is unmounted now");
            return Err(Error::new(ErrorKind::Io, aborted));
        }
        log::info!("{shown} is unmounted");
        Ok(())
    }

    /// Leaves those who still have the volume open. Threads that are at work finish it; those that
    /// sleep go with the process.
    fn cut_off(self) -> Result<()> {
        self.shared.cut_off.store(true, Ordering::SeqCst);
        let state = self.shared.lock();
        let is_unmounted = state.is_unmounted;
        let _ = self.shared.changed.wait_timeout_while(state, CUT_OFF, |state| state.threads > 0);
        let shown = self.shared.path.display();
        let context = match is_unmounted {
            // A copy of the mount, made with that namespace.
            true => {
                format!("{shown} was still mounted in another mount namespace, of a container or a program")
            }
            false => format!("{shown} was still in use"),
        };
        self.session.close();
        Err(Error::new(ErrorKind::Drain, context))
    }
}

impl FuseStopper {
    /// Unmounts. Where the volume is in use it goes out of sight, and its users may go on for a
    /// while.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        // Whoever asks again does not put the end off.
        if state.stopping.is_some() {
            return;
        }
        state.stopping = Some(Instant::now());
        drop(state);
        self.0.changed.notify_all();
        if self.0.is_gone() {
            // Something else may be mounted there by now.
            return;
        }
        let shown = self.0.path.display();
        match self.1.end(false) {
            Ok(()) => self.0.lock().is_unmounted = true,
            // Somebody else has unmounted it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
            Err(e) => {
                log::warn!("{shown} is in use ({e}): it is served until it is closed, for a while");
                self.abandon();
            }
        }
    }

    /// Takes the mount out of sight without waiting for anybody: for a process that ends at once.
    pub fn abandon(&self) {
        if self.0.is_gone() {
            return;
        }
        if let Err(e) = self.1.end(true) {
            log::error!("{} cannot be unmounted: {e}", self.0.path.display());
        }
    }
}

impl Shared {
    /// Whether it is unmounted.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// How many serve.
    pub(super) fn threads(&self) -> usize {
        self.lock().threads
    }

    /// Nothing that runs under the lock can leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the kernel can be shown such a volume as a file.
fn fits(mapping: &Mapping) -> Result<()> {
    if mapping.block() > LARGEST_BLOCK {
        let context = format!(
            "blocks of {} bytes cannot be served through FUSE, where writes come in pages of {LARGEST_BLOCK}",
            mapping.block()
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if !mapping.takes_bytes() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a file takes writes of any bytes, this volume does not",
        ));
    }
    Ok(())
}

/// A thread that counts as serving until this goes, however the thread ends.
struct Presence(Arc<Shared>);

impl Presence {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.lock().threads += 1;
        Self(shared.clone())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

fn no_thread(e: io::Error) -> Error {
    Error::new(ErrorKind::Io, "no thread or descriptor for the mount").with_source(e)
}

/// `ready` hears of the thread's beginning, and why the kernel took no entries of the thread's.
fn serve(
    shared: &Arc<Shared>,
    channel: FuseChannel,
    share: Option<&RingShare>,
    ready: mpsc::Sender<Result<Option<String>>>,
) {
    let begun = Worker::new(shared.clone(), channel, share);
    let (worker, begun) = match begun {
        Ok(mut worker) => {
            let registered = worker.register();
            (Some(worker), Ok(registered.err().map(|e| told(&e))))
        }
        Err(e) => (None, Err(e)),
    };
    // The receiver is gone when another thread could not begin.
    let _ = ready.send(begun);
    drop(ready);
    match worker.map(Worker::run) {
        None => {}
        Some(Ok(())) => shared.gone.store(true, Ordering::SeqCst),
        Some(Err(e)) => {
            log::error!("a thread of {} has ended: {}", shared.path.display(), told(&e));
            if shared.over_io_uring.load(Ordering::SeqCst) {
                // Requests from this thread's processors have no answer any more: all requests
                // fail, so that none waits for ever.
                shared.cut_off.store(true, Ordering::SeqCst);
                shared.mapping.rouse();
            }
        }
    }
}

fn told(e: &Error) -> String {
    let cause = std::error::Error::source(e).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{e}{cause}")
}
