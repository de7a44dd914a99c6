//! The server of a mount, from mounting to unmounting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use underseal_datapath::Mapping;
use underseal_fuse::wire::VALID;
use underseal_fuse::{FuseChannel, FuseSession, Point, RingShare};

use super::INBOX;
use super::crowd::Crowd;
use super::files::Files;
use super::mount::{MountPoint, mount};
use super::pause::{CarriedMount, Hold, namespace};
use super::transport::FuseTransport;
use super::turns::Turns;
use super::worker::Worker;
use crate::{Error, ErrorKind, Result, TellSize};

/// The largest block: the kernel writes pages of this size, several threads at once.
const LARGEST_BLOCK: u32 = 4096;

/// The size of a page of the kernel's cache.
const PAGE: u64 = 4096;

/// How long a thread may take to finish its last requests after the cut-off.
const CUT_OFF: Duration = Duration::from_secs(5);

/// How long a mount that is unmounted may be in use through copies in other mount namespaces.
const ELSEWHERE: Duration = Duration::from_secs(30);

/// The settings of a FUSE export.
#[derive(Debug, Clone)]
pub struct FuseConfig {
    /// The number of threads, each with its queue and its descriptor.
    pub threads: u16,
    /// Permits access for root: for a loop device over another user's mount.
    pub allow_root: bool,
    /// Permits the kernel to cache pages of the files. Off where clients write through another
    /// export, too.
    pub cache: bool,
    /// How long the kernel may answer for the attributes, also while the server is held. A new size
    /// reaches it at once.
    pub attributes_valid: Duration,
    /// Takes requests through io_uring, where the kernel offers that. Off where the mount may be
    /// handed over: the kernel cannot pass io_uring entries on.
    pub io_uring: bool,
    /// How long files may stay in use after the server was asked to stop: 30 seconds at most where
    /// only other mount namespaces have them.
    pub drain_timeout: Duration,
}

impl Default for FuseConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            allow_root: false,
            cache: true,
            attributes_valid: VALID,
            io_uring: true,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A mounted volume that is being served.
pub struct FuseServer {
    shared: Arc<Shared>,
    /// A channel for notifications to the kernel: no requests come through it.
    teller: Arc<FuseChannel>,
    session: FuseSession,
    point: Arc<Point>,
    transport: FuseTransport,
    drain_timeout: Duration,
}

/// Stops the server from any thread.
#[derive(Clone)]
pub struct FuseStopper(Arc<Shared>, Arc<Point>);

/// The state that all threads share.
pub(super) struct Shared {
    pub(super) mapping: Arc<Mapping>,
    pub(super) files: Files,
    pub(super) cache: bool,
    pub(super) attributes_valid: Duration,
    pub(super) turns: Turns,
    pub(super) crowd: Arc<Crowd>,
    pub(super) hold: Hold,
    /// True when requests come through io_uring, and hardly any through the descriptor.
    pub(super) over_io_uring: AtomicBool,
    /// True when no more requests are to be taken.
    pub(super) cut_off: AtomicBool,
    /// True when the kernel has reported that the volume is unmounted.
    gone: AtomicBool,
    pub(super) path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    threads: usize,
    stopping: Option<Instant>,
    /// True when the stopper has unmounted the volume while no file was open.
    is_unmounted: bool,
    /// True when users of open files are not waited for.
    is_cut_off: bool,
}

impl Shared {
    /// With `is_held`, the threads are paused at first.
    pub(super) fn new(
        mapping: Arc<Mapping>,
        files: Files,
        config: &FuseConfig,
        path: PathBuf,
        is_held: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            mapping,
            files,
            cache: config.cache,
            attributes_valid: config.attributes_valid,
            turns: Turns::new()?,
            crowd: Arc::new(Crowd::new(config.threads.max(1))),
            hold: Hold::new(is_held),
            over_io_uring: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            path,
            state: Mutex::new(State { threads: 0, stopping: None, is_unmounted: false, is_cut_off: false }),
            changed: Condvar::new(),
        })
    }
}

impl FuseServer {
    /// Mounts the volume: over a file as that file, in a folder as a file for each segment. Threads
    /// serve requests when this returns.
    ///
    /// # Errors
    /// `Unsupported` when the volume's [blocks](Mapping::with_block) are larger than the kernel's
    /// pages, or the volume does not accept writes of [any bytes](Mapping::with_bytes), as writers
    /// of files expect; `Mount` when the system refuses; `Io` when no queue, descriptor or thread
    /// can be had.
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

    /// Receives the mount of an old server, which serves it until
    /// [`FuseHolder::go_on`](super::FuseHolder::go_on); from then on this server does. A server
    /// that is dropped before leaves the mount as it is.
    ///
    /// # Errors
    /// As for [`mount`](Self::mount), apart from the system's refusal to mount; `Unsupported` when
    /// the mount is in another mount namespace or another server's, or longer writes were
    /// negotiated than this version supports.
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
            // An unmount in this namespace would leave the mount in the old server's namespace.
            return no("it is mounted in another mount namespace than this process is in");
        }
        if place.longest > INBOX {
            return no("the kernel was promised longer writes than this version takes");
        }
        let (session, carried) = (FuseSession::over(device), Some((place.since, place.gid)));
        // The new server unmounts what is at the path, whatever the old server said of it.
        if session.device_number().is_some_and(|number| !point.is_of(number)) {
            return no("what is mounted there is not the old server's");
        }
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
        let threads = config.threads.max(1);
        let shared = Shared::new(mapping, files, config, path, is_held).map_err(no_thread)?;
        let shared = Arc::new(shared);
        // After an error the volume is unmounted, which ends the threads that have begun.
        let (ready, begun) = mpsc::channel();
        for number in 0..threads {
            let channel = session.channel(false).map_err(no_thread)?;
            let queues = queues.as_ref().ok();
            let share = queues.map(|queues| RingShare::of(number, threads, *queues, INBOX as usize));
            let (presence, ready) = (Presence::new(&shared), ready.clone());
            thread::Builder::new()
                .name(format!("fuse-{number}"))
                .spawn(move || serve(&presence.0, number, channel, share.as_ref(), ready))
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

    /// Returns the means to stop this server.
    pub fn stopper(&self) -> FuseStopper {
        FuseStopper(self.shared.clone(), self.point.clone())
    }

    /// Returns how the kernel passes requests.
    pub fn transport(&self) -> &FuseTransport {
        &self.transport
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the descriptor that requests come from.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }

    /// Makes the kernel see another size of the volume: it asks for the file's attributes again,
    /// and forgets what it has of its pages beyond the smaller end. While the volume is suspended
    /// pages may wait for it to go on: the kernel drops those behind a new end itself, and for the
    /// one that the end lies in a thread waits.
    pub fn size_teller(&self) -> TellSize {
        let (shared, teller) = (self.shared.clone(), self.teller.clone());
        Arc::new(move |from, to| {
            let (node, begins) = shared.files.last();
            let end = from.min(to).saturating_sub(begins);
            let page = end / PAGE * PAGE;
            let path = shared.path.display();
            let told = match shared.mapping.is_suspended() {
                false => teller.forget(node, Some(page)),
                true if end == page => teller.forget(node, None),
                true => teller.forget(node, None).and_then(|()| {
                    let teller = teller.clone();
                    let later = move || drop(teller.forget(node, Some(page)));
                    thread::Builder::new().name("fuse-resized".into()).spawn(later).map(drop)
                }),
            };
            told.err().map(|e| format!("{path} has its new size in a second: the kernel was not told: {e}"))
        })
    }

    /// Waits until the volume is unmounted, by the stopper or by another program, and no file is
    /// open.
    ///
    /// # Errors
    /// `Drain` when a file was still open [`drain_timeout`](FuseConfig::drain_timeout) after the
    /// stopper was used, or when that cuts users off: they get errors when this process ends. `Io`
    /// when the mount's connection was aborted; the volume is unmounted then.
    pub fn run(self) -> Result<()> {
        let mut state = self.shared.lock();
        while state.threads > 0 {
            let limit = if state.is_cut_off {
                Duration::ZERO
            } else if state.is_unmounted {
                self.drain_timeout.min(ELSEWHERE)
            } else {
                self.drain_timeout
            };
            let left = state.stopping.map(|since| limit.saturating_sub(since.elapsed()));
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
            // All threads have failed: access to the mount would wait for ever.
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

    /// Ends the service while files are still open. Threads finish requests in flight; sleeping
    /// threads end with the process.
    fn cut_off(self) -> Result<()> {
        self.shared.cut_off.store(true, Ordering::SeqCst);
        let state = self.shared.lock();
        let is_unmounted = state.is_unmounted;
        let _ = self.shared.changed.wait_timeout_while(state, CUT_OFF, |state| state.threads > 0);
        let shown = self.shared.path.display();
        let context = match is_unmounted {
            // A copy of the mount, which came into being with that namespace.
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
    /// Unmounts the volume. If it is in use, the mount is detached, and open files stay usable
    /// until the drain timeout.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        // A second call does not postpone the end.
        if state.stopping.is_some() {
            return;
        }
        state.stopping = Some(Instant::now());
        drop(state);
        self.0.changed.notify_all();
        if self.0.is_gone() {
            // Another filesystem may be mounted at the path by now.
            return;
        }
        let shown = self.0.path.display();
        match self.1.end(false) {
            Ok(()) => {
                self.0.lock().is_unmounted = true;
                self.0.changed.notify_all();
            }
            // Another program has unmounted it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
            Err(e) => {
                log::warn!("{shown} is in use ({e}): it is served until it is closed, for a while");
                self.abandon();
            }
        }
    }

    /// Ends the service though files are open: their users get errors.
    pub fn cut_off(&self) {
        let mut state = self.0.lock();
        state.is_cut_off = true;
        state.stopping.get_or_insert_with(Instant::now);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Detaches the mount without waiting for open files: for a process that ends at once.
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
    /// Returns true when the volume is unmounted.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Returns the number of threads that serve.
    pub(super) fn threads(&self) -> usize {
        self.lock().threads
    }

    /// Locks the state. A panic cannot leave the state half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the kernel can use a volume with these blocks as a file.
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

/// The presence of a thread: it is counted as serving until this is dropped, however the thread
/// ends.
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

/// Runs a thread. `ready` receives the result of its start, and why the kernel refused its io_uring
/// entries.
fn serve(
    shared: &Arc<Shared>,
    number: u16,
    channel: FuseChannel,
    share: Option<&RingShare>,
    ready: mpsc::Sender<Result<Option<String>>>,
) {
    let begun = Worker::new(shared.clone(), number, channel, share);
    let (worker, begun) = match begun {
        Ok(mut worker) => {
            let registered = worker.register();
            (Some(worker), Ok(registered.err().map(|e| told(&e))))
        }
        Err(e) => (None, Err(e)),
    };
    // The receiver is gone when another thread could not start.
    let _ = ready.send(begun);
    drop(ready);
    match worker.map(Worker::run) {
        None => {}
        Some(Ok(())) => shared.gone.store(true, Ordering::SeqCst),
        Some(Err(e)) => {
            log::error!("a thread of {} has ended: {}", shared.path.display(), told(&e));
            if shared.over_io_uring.load(Ordering::SeqCst) {
                // Requests from this thread's processors would no longer be answered: all requests
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
