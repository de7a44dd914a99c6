//! A mount, from start to end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
pub use underseal_fuse::Unmounter;
use underseal_fuse::{FuseSession, Init, MountSettings, Point, RingShare, capability};
use underseal_sandbox::{OwnTree, pin};

use super::dispatch::{FsWorker, ReplyPath};
use super::rings::{self, RingWorker};
use super::slow::{self, Later, Slow};
use super::threads::MountThreads;
use super::{Fs, LARGEST, Sealing, identity};
use crate::lock::{LockMode, RootLock};
use crate::{Error, ErrorKind, Result};

/// The type in the mount table, after "fuse.".
const SUBTYPE: &str = "ecryptfs";
/// The full type.
const TYPE: &str = "fuse.ecryptfs";

/// The largest number of requests that the kernel sends without a waiting caller: read-ahead,
/// asynchronous direct I/O.
const BACKGROUND: u16 = 64;

/// The number of descriptors reserved for open files.
const RESERVED: u64 = 1024;

/// The parameters of a mount.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The number of threads that receive requests. Other threads serve requests that may take
    /// long.
    pub threads: usize,
    /// Refuses writes.
    pub read_only: bool,
    /// Gives other users access; `None` for this user only.
    pub allow: Option<Allow>,
    /// Options of every mount: `nosuid`, `noexec`, ..
    pub others: Vec<String>,
    /// Reaches files through this process's own mount of the folder, for a sandbox without access
    /// to other folders ([`Mount::root`]).
    pub own_tree: bool,
    /// Receives requests through io_uring, if the kernel offers it.
    pub io_uring: bool,
}

/// The users with access besides the user who mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allow {
    /// All users, limited by the files' modes.
    Other,
    /// Root only.
    Root,
}

impl Default for MountConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            read_only: false,
            allow: None,
            others: Vec::new(),
            own_tree: false,
            io_uring: true,
        }
    }
}

/// A lower folder, opened once: its path may lead elsewhere before it is mounted.
#[derive(Debug)]
pub struct LowerFolder {
    fd: OwnedFd,
    path: PathBuf,
}

impl LowerFolder {
    /// Opens a folder. A link of another user is not followed.
    ///
    /// # Errors
    /// A [`ForeignLink`](underseal_sandbox::ForeignLink); `ENOTDIR` for another file; `ENOTCONN`
    /// for a mount whose server has ended; other errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = pin(path)?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let path = fs::read_link(crate::proc_path(&fd))?;
        Ok(Self { fd, path })
    }

    /// Returns the path without links, as it was when the folder was opened: for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for LowerFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A mounted folder that is being served.
pub struct Mount {
    session: FuseSession,
    unmounter: Unmounter,
    tree: Arc<OwnedFd>,
    root: Option<Arc<OwnedFd>>,
    threads: MountThreads,
    later: Later,
    is_over_io_uring: bool,
    /// Locks the lower folder as long as the mount is served.
    _claim: RootLock,
}

impl Mount {
    /// Mounts `lower` at `at`: encrypted according to `sealing`, or unchanged. Requests are served
    /// from here on.
    ///
    /// # Errors
    /// `Busy` when another mount or a tool uses the lower folder; `Io` when the system refuses.
    pub fn new(
        lower: LowerFolder,
        at: &Path,
        sealing: Option<Sealing>,
        config: &MountConfig,
    ) -> Result<Self> {
        let failed = |what: &str, path: &Path, e: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot {what} {}", path.display())).with_source(e)
        };
        let LowerFolder { fd: folder, path: lower } = lower;
        let point = Arc::new(Point::open(at).map_err(|e| failed("mount on", at, e))?);
        let at = point.path().to_owned();
        let read_only = config.read_only || sealing.as_ref().is_some_and(|sealing| sealing.encrypted_view);
        let (tree, root) = tree(folder, config);
        // On this descriptor, so that no other folder can be reached.
        let claim = RootLock::on(&tree, &lower, if read_only { LockMode::Shared } else { LockMode::Alone })?;
        let opened = Arc::new(tree.try_clone().map_err(|e| failed("open", &lower, e))?);
        let fs = Fs::new(tree, &lower, sealing, config).map_err(|e| failed("open", &lower, e.into()))?;
        let fs = Arc::new(fs);

        let options = options(&lower, read_only, config);
        let off = || Err("io_uring is off for this mount".into());
        let queues = if config.io_uring { underseal_fuse::queues() } else { off() };
        let wanted = if queues.is_ok() { capability::OVER_IO_URING } else { 0 };
        let init = Init { wanted: INIT.wanted | wanted, ..INIT };
        let session = FuseSession::mount(&point, &options, &init).map_err(|e| {
            let context = format!("cannot mount on {}{e}", at.display());
            Error::new(ErrorKind::Io, context).with_source(e.into_source())
        })?;
        let mut threads = MountThreads::new();
        let slow = Slow::new();
        let first = Arc::new(session.channel(true).map_err(|e| failed("serve", &at, e))?);
        // Nothing has set it before.
        let _ = fs.kernel.set(first.clone());
        for number in 0..slow::THREADS {
            let mut worker = FsWorker::new(fs.clone(), ReplyPath::Channel(first.clone()), None);
            let requests = slow.requests();
            let spawned = threads.spawn(format!("ecryptfs-slow-{number}"), move || {
                identity::detach()?;
                worker.run_slow(requests)
            });
            spawned.map_err(|e| failed("serve", &at, e))?;
        }
        let queues = queues.and_then(|queues| {
            session.is_over_io_uring().then_some(queues).ok_or_else(underseal_fuse::not_offered)
        });
        let (begins, begun) = mpsc::channel();
        let count = u16::try_from(config.threads.max(1)).unwrap_or(u16::MAX);
        for number in queues.iter().flat_map(|_| 0..count) {
            let channel = Arc::new(session.channel(true).map_err(|e| failed("serve", &at, e))?);
            let queues = queues.as_ref().copied().unwrap_or(1);
            let share = RingShare::of(number, count, queues, rings::PAYLOAD);
            let (fs, slow, begins) = (fs.clone(), slow.clone(), begins.clone());
            let spawned = threads.spawn(format!("ecryptfs-ring-{number}"), move || {
                identity::detach()?;
                let worker = FsWorker::new(fs, ReplyPath::Channel(channel.clone()), Some(slow));
                let mut worker = match RingWorker::new(worker, channel, &share) {
                    Ok(worker) => worker,
                    Err(e) => {
                        // The receiver is gone when another thread could not start.
                        let _ = begins.send(Some(e.to_string()));
                        return Ok(());
                    }
                };
                let _ = begins.send(None);
                drop(begins);
                worker.run()
            });
            spawned.map_err(|e| failed("serve", &at, e))?;
        }
        drop(begins);
        // The kernel sends no requests this way unless all threads could start.
        let transport = queues.and_then(|_| {
            let told: Vec<Option<String>> = begun.iter().collect();
            let all = if told.len() == usize::from(count) { None } else { Some("a thread has ended".into()) };
            told.into_iter().flatten().next().or(all).map_or(Ok(()), Err)
        });
        if transport.is_err() && session.is_over_io_uring() {
            underseal_fuse::decline(&first).map_err(|e| failed("serve", &at, e))?;
        }
        // INTERRUPT and FORGET still come through the descriptor.
        let others = if transport.is_ok() { 1 } else { count };
        for number in 0..others {
            let channel = match number {
                0 => first.clone(),
                _ => Arc::new(session.channel(true).map_err(|e| failed("serve", &at, e))?),
            };
            let mut worker = FsWorker::new(fs.clone(), ReplyPath::Channel(channel), Some(slow.clone()));
            let spawned = threads.spawn(format!("ecryptfs-{number}"), move || {
                identity::detach()?;
                worker.run()
            });
            spawned.map_err(|e| failed("serve", &at, e))?;
        }
        // The slow threads end after the others.
        let later = slow.later();
        drop(slow);
        let how = match &transport {
            Ok(()) => "through io_uring".into(),
            Err(why) => format!("through /dev/fuse: {why}"),
        };
        log::info!("{} is mounted on {}; requests come {how}", lower.display(), at.display());
        let is_over_io_uring = transport.is_ok();
        let unmounter = Unmounter::of(&point);
        Ok(Self { session, unmounter, tree: opened, root, threads, later, is_over_io_uring, _claim: claim })
    }

    /// Returns true when requests come through io_uring.
    pub fn is_over_io_uring(&self) -> bool {
        self.is_over_io_uring
    }

    /// Returns a value that unmounts it.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Returns the lower folder, opened before the mount, which may hide the folder's path.
    pub fn tree(&self) -> Arc<OwnedFd> {
        self.tree.clone()
    }

    /// Returns the folder that can be this process's root while requests are served, if files are
    /// reached through an own mount.
    pub fn root(&self) -> Option<Arc<OwnedFd>> {
        self.root.clone()
    }

    /// Waits until it is unmounted and nothing in it is open.
    ///
    /// # Errors
    /// `Io` when a thread has failed. The others may still serve: requests of that thread are
    /// answered only when this process ends. `Io` also when the mount's connection was aborted;
    /// then it is unmounted.
    pub fn run(self) -> Result<()> {
        let failed = |e| Error::new(ErrorKind::Io, "requests could not be served").with_source(e);
        let mut outcome = self.threads.join();
        if outcome.is_ok() {
            for thread in self.later.threads() {
                let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
                outcome = outcome.and(ended);
            }
        }
        if outcome.is_ok() && self.session.close() {
            let aborted = "the mount's connection was aborted, and it is unmounted now";
            return Err(Error::new(ErrorKind::Io, aborted));
        }
        outcome.map_err(failed)
    }
}

/// Returns the lower folder, and the root that belongs to it.
fn tree(lower: OwnedFd, config: &MountConfig) -> (OwnedFd, Option<Arc<OwnedFd>>) {
    if config.own_tree && identity::is_root() {
        let devices = config.others.iter().any(|option| option == "dev");
        match OwnTree::of(&lower, devices) {
            Ok(OwnTree { tree, root }) => return (tree, Some(Arc::new(root))),
            Err(e) => log::warn!("the server keeps its way to other folders and to device nodes: {e}"),
        }
    }
    (lower, None)
}

/// Unmounts a mount of this kind, as its user: fusermount3 -u.
///
/// # Errors
/// `EBUSY` when it is in use; `EINVAL` when nothing is mounted there, or something else; otherwise
/// the system's error. system says otherwise.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    // root may unmount anything.
    underseal_fuse::unmount(path, lazily, |mounted| mounted.kind == TYPE)
}

fn options(lower: &Path, read_only: bool, config: &MountConfig) -> MountSettings {
    MountSettings {
        name: lower.to_string_lossy().replace([',', '\\'], "_"),
        subtype: SUBTYPE,
        read_only,
        // The kernel cannot give access to root only: see `Fs::owner`.
        allow_other: config.allow.is_some() || identity::is_root(),
        others: config.others.clone(),
    }
}

/// The features requested from the kernel when the mount begins.
const INIT: Init = Init {
    wanted: capability::ATOMIC_O_TRUNC
        // The kernel drops pages when this server says so (`cached.rs`). By another mtime it would
        // drop those of a write that is under way, and read the old bytes again.
        | capability::EXPLICIT_INVAL_DATA
        | capability::DO_READDIRPLUS
        | capability::READDIRPLUS_AUTO
        | capability::ASYNC_DIO
        | capability::PARALLEL_DIROPS
        // Otherwise the kernel asks for `security.capability` before each write.
        | capability::HANDLE_KILLPRIV_V2
        | capability::POSIX_ACL
        // Without `DIRECT_IO_ALLOW_MMAP`: a shared mapping of a file that was opened past the
        // kernel's pages is refused. Written back, it would undo writes to other bytes of a page.
        | capability::CACHE_SYMLINKS,
    needed: capability::SETXATTR_EXT | capability::DONT_MASK,
    since: "5.12",
    max_write: LARGEST,
    max_background: BACKGROUND,
};

/// Raises this process's limit of descriptors as far as possible.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // After an error the limit stays lower.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns this process's limit of a file's size.
pub(super) fn size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Returns how many descriptors nodes may keep, after the limit was raised.
pub(super) fn descriptors() -> usize {
    raise_descriptor_limit();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 20);
    let kept = (limit.saturating_sub(RESERVED) / 2).max(64);
    usize::try_from(kept).unwrap_or(usize::MAX)
}
