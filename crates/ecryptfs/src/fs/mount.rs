//! From the mount to its end.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, getrlimit, setrlimit};
pub use underseal_fuse::Unmounter;
use underseal_fuse::{FuseSession, Init, MountSettings, Point, RingShare, capability};
use underseal_sandbox::OwnTree;

use super::dispatch::{FsWorker, ReplyPath};
use super::rings::{self, RingWorker};
use super::slow::{self, Later, Slow};
use super::threads::MountThreads;
use super::{Fs, LARGEST, Sealing, identity};
use crate::lock::{LockMode, RootLock};
use crate::{Error, ErrorKind, Result};

/// The type that the mount table shows, after "fuse.".
const SUBTYPE: &str = "ecryptfs";
/// All of it: what fusermount3 has mounted for a user; and what root mounts, which has no subtype.
const TYPES: [&str; 2] = ["fuse.ecryptfs", "fuse"];

/// Requests that the kernel keeps under way without anybody waiting: read ahead, asynchronous
/// direct I/O.
const BACKGROUND: u16 = 64;

/// Descriptors that are left for open files.
const RESERVED: u64 = 1024;

/// How a folder is mounted.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// Threads that take requests. Those that may take long are done by others.
    pub threads: usize,
    /// Refuse writes.
    pub read_only: bool,
    /// Let all users in, not only this one; `None` for this one only.
    pub allow: Option<Allow>,
    /// Options of every mount: `nosuid`, `noexec`, ..
    pub others: Vec<String>,
    /// Files are reached through a mount of the folder of this process's own, for a sandbox that
    /// leaves it no other folder ([`Mount::root`]).
    pub own_tree: bool,
    /// Take requests through io_uring, where the kernel offers that.
    pub io_uring: bool,
}

/// Who is let in beside the user who mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allow {
    /// Everybody, as the files' modes say.
    Other,
    /// Root.
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

/// A mounted folder that is being served.
pub struct Mount {
    session: FuseSession,
    unmounter: Unmounter,
    root: Option<Arc<OwnedFd>>,
    threads: MountThreads,
    later: Later,
    is_over_io_uring: bool,
    /// The lower folder is this mount's as long as it is served.
    _claim: RootLock,
}

impl Mount {
    /// Mounts `lower` at `at`; encrypted as `sealing` has it, else as it is. Requests are served
    /// from here on.
    ///
    /// # Errors
    /// `Busy` when another mount or a tool has the lower folder; `Io` when there is no such folder,
    /// or the system refuses.
    pub fn new(lower: &Path, at: &Path, sealing: Option<Sealing>, config: &MountConfig) -> Result<Self> {
        let failed = |what: &str, path: &Path, e: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot {what} {}", path.display())).with_source(e)
        };
        let lower = fs::canonicalize(lower).map_err(|e| failed("open", lower, e))?;
        let point = Arc::new(Point::open(at).map_err(|e| failed("mount on", at, e))?);
        let at = point.path().to_owned();
        let read_only = config.read_only || sealing.as_ref().is_some_and(|sealing| sealing.encrypted_view);
        let (tree, root) = tree(&lower, config).map_err(|e| failed("open", &lower, e))?;
        // On that descriptor, so that none leads to another folder.
        let claim = RootLock::on(&tree, &lower, if read_only { LockMode::Shared } else { LockMode::Alone })?;
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
                        // The receiver is gone when another thread could not begin.
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
        // The kernel sends none that way, unless all threads could begin.
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
        // The slow threads end when the others have.
        let later = slow.later();
        drop(slow);
        let how = match &transport {
            Ok(()) => "through io_uring".into(),
            Err(why) => format!("through /dev/fuse: {why}"),
        };
        log::info!("{} is mounted on {}; requests come {how}", lower.display(), at.display());
        let is_over_io_uring = transport.is_ok();
        let unmounter = Unmounter::of(&point);
        Ok(Self { session, unmounter, root, threads, later, is_over_io_uring, _claim: claim })
    }

    /// Whether requests come through io_uring.
    pub fn is_over_io_uring(&self) -> bool {
        self.is_over_io_uring
    }

    /// What takes it away again.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The folder in which this process's paths may begin once requests are served, where files are
    /// reached through a mount of their own.
    pub fn root(&self) -> Option<Arc<OwnedFd>> {
        self.root.clone()
    }

    /// Waits until it is unmounted, and nobody has anything in it open.
    ///
    /// # Errors
    /// `Io` when a thread has failed. The others may still serve: requests of that thread are
    /// answered only when this process ends. `Io` also when the mount's connection was aborted; it
    /// is unmounted then.
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

/// The lower folder, and the root that goes with it.
fn tree(lower: &Path, config: &MountConfig) -> io::Result<(OwnedFd, Option<Arc<OwnedFd>>)> {
    if config.own_tree && identity::is_root() {
        let devices = config.others.iter().any(|option| option == "dev");
        match OwnTree::of(lower, devices) {
            Ok(OwnTree { tree, root }) => return Ok((tree, Some(Arc::new(root)))),
            Err(e) => log::warn!("the server keeps its way to other folders and to device nodes: {e}"),
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((open(lower, flags, Mode::empty())?, None))
}

/// Takes a FUSE mount that may be of this kind away, as its user: fusermount3 -u.
///
/// # Errors
/// `EBUSY` when it is in use; `EINVAL` when nothing is mounted there, or something else; what the
/// system says otherwise.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    // root may unmount anything.
    underseal_fuse::unmount(path, lazily, |mounted| TYPES.contains(&&*mounted.kind))
}

fn options(lower: &Path, read_only: bool, config: &MountConfig) -> MountSettings {
    MountSettings {
        name: lower.to_string_lossy().replace([',', '\\'], "_"),
        subtype: SUBTYPE,
        read_only,
        // Root alone is more than the kernel can tell from others: see `Fs::owner`.
        allow_other: config.allow.is_some() || identity::is_root(),
        others: config.others.clone(),
    }
}

/// What the kernel is asked for when the mount begins.
const INIT: Init = Init {
    wanted: capability::ATOMIC_O_TRUNC
        | capability::AUTO_INVAL_DATA
        | capability::DO_READDIRPLUS
        | capability::READDIRPLUS_AUTO
        | capability::ASYNC_DIO
        | capability::PARALLEL_DIROPS
        // Else the kernel asks for `security.capability` before each write.
        | capability::HANDLE_KILLPRIV_V2
        | capability::POSIX_ACL
        | capability::CACHE_SYMLINKS
        | capability::DIRECT_IO_ALLOW_MMAP,
    needed: capability::SETXATTR_EXT | capability::DONT_MASK,
    since: "5.12",
    max_write: LARGEST,
    max_background: BACKGROUND,
};

/// Lets this process have as many descriptors as it can.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Then there are fewer.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// How many descriptors nodes may keep, once this process may have as many as it can.
pub(super) fn descriptors() -> usize {
    raise_descriptor_limit();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 20);
    let kept = (limit.saturating_sub(RESERVED) / 2).max(64);
    usize::try_from(kept).unwrap_or(usize::MAX)
}
