//! From the mount to its end.

use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fuser::{Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use underseal_sandbox::Helper;

use super::device::Device;
use super::dispatch::Worker;
use super::{Fs, LARGEST, Sealing, identity};
use crate::lock::{Access, Claim};
use crate::{Error, ErrorKind, Result};

/// The type that the mount table shows, after "fuse.".
const SUBTYPE: &str = "ecryptfs";
/// All of it: what fusermount3 has mounted for a user; and what fuser mounts for root, which has no subtype.
const TYPES: [&str; 2] = ["fuse.ecryptfs", "fuse"];

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
    held: Held,
    path: PathBuf,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The lower folder is this mount's as long as it is served.
    _claim: Option<Claim>,
}

/// Takes the mount away, from any thread. The process's helper does it, where there is one.
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
        let held =
            Held { session: ManuallyDrop::new(session), unmounter: Some(Unmounter { path: at.clone() }) };
        let mut threads = Vec::new();
        for number in 0..config.threads.max(1) {
            let device = Device::of(held.session.as_fd()).map_err(|e| failed("serve", &at, e))?;
            let mut worker = Worker::new(fs.clone(), device);
            let thread = thread::Builder::new().name(format!("ecryptfs-{number}")).spawn(move || {
                identity::detach()?;
                worker.run()
            });
            threads.push(thread.map_err(|e| failed("serve", &at, e))?);
        }
        log::info!("{} is mounted on {}", lower.display(), at.display());
        Ok(Self { held, path: at, threads, _claim: claim })
    }

    /// What takes it away again.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { path: self.path.clone() }
    }

    /// Waits until it is unmounted, and nobody has anything in it open.
    ///
    /// # Errors
    /// When a thread could not go on.
    pub fn run(mut self) -> Result<()> {
        let failed = |e| Error::new(ErrorKind::Io, "requests could not be served").with_source(e);
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            outcome = outcome.and(ended);
        }
        self.held.unmounter = None;
        outcome.map_err(failed)
    }
}

/// fuser's part, which would unmount the path by itself, when something else may be there, and when this process has no
/// privileges for it any more.
struct Held {
    session: ManuallyDrop<Session<Handshake>>,
    /// None once nothing is mounted any more.
    unmounter: Option<Unmounter>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(unmounter) = &self.unmounter
            && let Err(e) = unmounter.unmount(true)
        {
            log::error!("{} cannot be unmounted: {e}", unmounter.path.display());
        }
        // SAFETY: the session owned the descriptor, and is never heard of again.
        drop(unsafe { OwnedFd::from_raw_fd(self.session.as_fd().as_raw_fd()) });
    }
}

impl Unmounter {
    /// Unmounts: at once, or `lazily`, out of sight while those who use it go on.
    ///
    /// # Errors
    /// `EBUSY` when it is in use; what the system says otherwise.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        Helper::get().map_or_else(|| unmount(&self.path, lazily), |helper| helper.unmount(lazily))
    }
}

/// Takes a FUSE mount that may be of this kind away, as its user: fusermount3 -u.
///
/// # Errors
/// `EBUSY` when it is in use; `EINVAL` when nothing is mounted there, or something else; what the system says otherwise.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    // root may unmount anything, and a path that was right may lead to something else by now.
    if !mounted_at(path)?.is_some_and(|kind| TYPES.contains(&&*kind)) {
        return Err(Errno::INVAL.into());
    }
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

/// The type of what is mounted on a path, as the mount table has it; nothing where nothing is.
///
/// # Errors
/// When the path, up to its last name, leads nowhere; when the mount table cannot be read.
pub fn mounted_at(path: &Path) -> io::Result<Option<String>> {
    // Not the mount itself: its server may have ended, and nothing can be asked of it.
    let at = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => fs::canonicalize(parent)?.join(name),
        _ => fs::canonicalize(path)?,
    };
    Ok(last_mount(&fs::read("/proc/self/mountinfo")?, at.as_os_str().as_bytes()))
}

/// The one on top: the table has them in the order in which they were mounted.
fn last_mount(table: &[u8], at: &[u8]) -> Option<String> {
    let mount = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == b' ');
        let is_there = unescaped(words.nth(4)?) == at;
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        is_there.then(|| String::from_utf8_lossy(kind).into_owned())
    };
    table.split(|&byte| byte == b'\n').filter_map(mount).next_back()
}

/// Spaces, tabs, newlines and backslashes are three octal digits there.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| first == b'\\');
        let byte = digits.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_on_top_counts_and_names_are_unescaped() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            37 35 0:50 / /a\\040b\\134c rw - fuse.ecryptfs /lower rw,user_id=0\n\
            38 35 0:51 / /mnt2 rw shared:7 - tmpfs tmpfs rw\n";
        assert_eq!(last_mount(table, b"/mnt2").as_deref(), Some("tmpfs"));
        assert_eq!(last_mount(table, b"/a b\\c").as_deref(), Some(TYPES[0]));
        assert_eq!(last_mount(table, b"/mnt"), None);
        assert_eq!(last_mount(b"", b"/"), None);
        assert_eq!(format!("fuse.{SUBTYPE}"), TYPES[0]);
    }
}
