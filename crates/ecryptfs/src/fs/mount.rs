//! From the mount to its end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fuser::{Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::device::Device;
use super::dispatch::Worker;
use super::{Fs, LARGEST, Sealing, identity};
use crate::lock::{Access, Claim};
use crate::{Error, ErrorKind, Result};

/// The type that the mount table shows, after "fuse.".
const SUBTYPE: &str = "ecryptfs";

/// Requests that the kernel keeps under way without anybody waiting: read ahead, asynchronous direct I/O.
const BACKGROUND: u16 = 64;

/// Descriptors that are left for open files.
const RESERVED: u64 = 1024;

/// How a folder is mounted.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// Threads that serve requests.
    pub threads: usize,
    /// Refuse writes.
    pub read_only: bool,
    /// Let all users in, not only this one; `None` for this one only.
    pub allow: Option<Allow>,
    /// Options of every mount: `nosuid`, `noexec`, ..
    pub others: Vec<String>,
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
        Self { threads: 2, read_only: false, allow: None, others: Vec::new() }
    }
}

/// A mounted folder that is being served.
pub struct Mount {
    session: Session<Handshake>,
    path: PathBuf,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The lower folder is this mount's as long as it is served.
    _claim: Option<Claim>,
}

/// Takes the mount away, from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    path: PathBuf,
}

impl Mount {
    /// Mounts `lower` at `at`; encrypted as `sealing` has it, else as it is. Requests are served from here on.
    ///
    /// # Errors
    /// `Busy` when another mount or a tool has the lower folder; `Io` when there is no such folder, or the system refuses.
    pub fn new(lower: &Path, at: &Path, sealing: Option<Sealing>, config: &MountConfig) -> Result<Self> {
        let failed = |what: &str, path: &Path, e: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot {what} {}", path.display())).with_source(e)
        };
        let lower = fs::canonicalize(lower).map_err(|e| failed("open", lower, e))?;
        let at = fs::canonicalize(at).map_err(|e| failed("mount on", at, e))?;
        let read_only = config.read_only || sealing.as_ref().is_some_and(|sealing| sealing.encrypted_view);
        let claim = Claim::of(&lower, if read_only { Access::Shared } else { Access::Alone })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&lower, flags, Mode::empty()).map_err(|e| failed("open", &lower, e.into()))?;
        let fs = Fs::new(root, &lower, sealing, config).map_err(|e| failed("open", &lower, e.into()))?;
        let fs = Arc::new(fs);

        let options = options(&lower, read_only, config);
        let session = Session::new(Handshake, &at, &options).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot mount on {}{}", at.display(), why(&e))).with_source(e)
        })?;
        let mut threads = Vec::new();
        for number in 0..config.threads.max(1) {
            let device = Device::of(session.as_fd()).map_err(|e| failed("serve", &at, e))?;
            let mut worker = Worker::new(fs.clone(), device);
            let thread = thread::Builder::new().name(format!("ecryptfs-{number}")).spawn(move || {
                identity::detach()?;
                worker.run()
            });
            threads.push(thread.map_err(|e| failed("serve", &at, e))?);
        }
        log::info!("{} is mounted on {}", lower.display(), at.display());
        Ok(Self { session, path: at, threads, _claim: claim })
    }

    /// What takes it away again.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { path: self.path.clone() }
    }

    /// Waits until it is unmounted, and nobody has anything in it open.
    ///
    /// # Errors
    /// When a thread could not go on.
    pub fn run(self) -> Result<()> {
        let failed = |e| Error::new(ErrorKind::Io, "requests could not be served").with_source(e);
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            outcome = outcome.and(ended);
        }
        // fuser would unmount the path once more, and something else may be there by now.
        let device = self.session.as_fd().as_raw_fd();
        std::mem::forget(self.session);
        // SAFETY: the session owned the descriptor, and is never heard of again.
        drop(unsafe { OwnedFd::from_raw_fd(device) });
        outcome.map_err(failed)
    }
}

impl Unmounter {
    /// Unmounts: at once, or `lazily`, out of sight while those who use it go on.
    ///
    /// # Errors
    /// `EBUSY` when it is in use; what the system says otherwise.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        unmount(&self.path, lazily)
    }
}

/// Takes a mount away, as its user: fusermount3 -u.
///
/// # Errors
/// `EBUSY` when it is in use; what the system says otherwise.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        // Only root may do it without help.
        Err(Errno::PERM) => {}
        other => return Ok(other?),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path);
    let output = command.output()?;
    match String::from_utf8_lossy(&output.stderr).trim() {
        _ if output.status.success() => Ok(()),
        text if text.contains("busy") => Err(Errno::BUSY.into()),
        text => Err(io::Error::other(text.to_owned())),
    }
}

fn options(lower: &Path, read_only: bool, config: &MountConfig) -> fuser::Config {
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        // A comma would begin another option.
        MountOption::FSName(lower.to_string_lossy().replace([',', '\\'], "_")),
        MountOption::Subtype(SUBTYPE.into()),
        MountOption::DefaultPermissions,
        if read_only { MountOption::RO } else { MountOption::RW },
    ];
    options.mount_options.extend(config.others.iter().filter_map(|option| of_every_mount(option)));
    let allow = config.allow.or(identity::is_root().then_some(Allow::Other));
    options.acl = match allow {
        Some(Allow::Other) => SessionACL::All,
        Some(Allow::Root) => SessionACL::RootAndOwner,
        None => SessionACL::Owner,
    };
    options
}

/// Those that a mount helper takes; what is the default, or says when to mount, is left out.
fn of_every_mount(option: &str) -> Option<MountOption> {
    Some(match option {
        "suid" => MountOption::Suid,
        "nosuid" => MountOption::NoSuid,
        "dev" => MountOption::Dev,
        "nodev" => MountOption::NoDev,
        "exec" => MountOption::Exec,
        "noexec" => MountOption::NoExec,
        "sync" => MountOption::Sync,
        "noatime" => MountOption::NoAtime,
        _ => return None,
    })
}

fn why(e: &io::Error) -> &'static str {
    match e.kind() {
        _ if e.to_string().contains("user_allow_other") => {
            ": /etc/fuse.conf does not allow others, nor root, to be let in (user_allow_other)"
        }
        io::ErrorKind::NotFound => ": users other than root need fusermount3 (package fuse3)",
        _ => "",
    }
}

/// How many descriptors nodes may keep, once this process may have as many as it can.
pub(super) fn descriptors() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Then there are fewer.
    let _ = setrlimit(Resource::Nofile, limit);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20).min(1 << 20);
    let kept = (limit.saturating_sub(RESERVED) / 2).max(64);
    usize::try_from(kept).unwrap_or(usize::MAX)
}

/// What the kernel is asked for when the mount begins; requests never come here.
struct Handshake;

impl Filesystem for Handshake {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            // Else the kernel asks for `security.capability` before each write.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_SETXATTR_EXT
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let missing = wanted - config.capabilities();
        if missing.intersects(InitFlags::FUSE_SETXATTR_EXT | InitFlags::FUSE_DONT_MASK) {
            return Err(io::Error::other("this kernel's FUSE is too old: Linux 5.12 or later is needed"));
        }
        let _ = config.add_capabilities(wanted - missing);
        let _ = config.set_max_write(LARGEST);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }
}
