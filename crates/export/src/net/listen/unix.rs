//! Unix sockets: closed to other users from the first moment, never in place of something else,
//! gone at the end.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RenameFlags, chmod, chownat, fchmod, flock, fstat,
        renameat_with,
    },
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use underseal_sandbox::RemovedKind;

use crate::{Error, ErrorKind, Result};

/// How often and how long a directory's lock is tried for: servers have it for microseconds.
const LOCK_TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// A socket's entry in its directory. Dropping removes it, unless somebody has put something else
/// there.
#[derive(Debug)]
pub(super) struct UnixPath {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// It is another process's, as yet.
    left_alone: AtomicBool,
}

/// Who may connect to a Unix socket: whoever may write to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketAccess {
    /// The file's mode.
    pub mode: u32,
    /// The number of the file's group; none: this process's.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    /// This user alone.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// Binds and listens.
pub(super) fn bind(path: &Path, access: SocketAccess) -> Result<(OwnedFd, UnixPath)> {
    let failed = |why: &str, source: std::io::Error| {
        Error::new(ErrorKind::Listen, format!("unix:{}: {why}", path.display())).with_source(source)
    };
    let os = |why: &'static str| move |errno: Errno| failed(why, errno.into());
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| Error::new(ErrorKind::Listen, format!("unix:{}: names no file", path.display())))?;
    // Absolute, for whoever removes it may stand in another directory by then.
    let path =
        &fs::canonicalize(parent).map_err(|error| failed("its directory is not there", error))?.join(name);
    let address = SocketAddrUnix::new(path.as_path())
        .map_err(os("the path is too long for a socket (107 bytes); choose a shorter one"))?;

    // Between bind and listen, our socket looks dead to another server that starts; the lock keeps
    // such two apart.
    let lock = lock(parent);
    let socket = new_socket().map_err(os("no socket"))?;
    // Linux gives the new file the socket's own mode (less the umask): there is no moment at which
    // it is open to others, and the umask, which all threads share, stays as it is.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(os("the socket's mode cannot be set"))?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_dead(path, &address, lock.is_some())?;
            rustix::net::bind(&socket, &address).map_err(os("cannot listen"))?;
        }
        done => done.map_err(os("cannot listen"))?,
    }
    let file = fs::symlink_metadata(path).map_err(|error| failed("the socket vanished", error))?;
    let entry = UnixPath::of(path.clone(), file.dev(), file.ino());
    if access != SocketAccess::default() {
        // Nobody can connect before it listens.
        entry.let_in(access).map_err(|error| failed("its mode or group cannot be set", error))?;
    }
    rustix::net::listen(&socket, super::BACKLOG).map_err(os("cannot listen"))?;
    Ok((socket, entry))
}

/// The lock that servers have on a directory while they put a socket there. None where the
/// directory cannot be read, or where somebody keeps it locked: whoever can read it can do that,
/// and nobody is waited for who may never end.
fn lock(directory: &Path) -> Option<fs::File> {
    let directory = fs::File::open(directory).ok()?;
    for _ in 0..LOCK_TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Removes a socket on which nobody listens; everything else at the path is an error.
fn remove_dead(path: &Path, address: &SocketAddrUnix, locked: bool) -> Result<()> {
    let taken = |why: &str| Error::new(ErrorKind::Listen, format!("unix:{}: {why}", path.display()));
    let file = fs::symlink_metadata(path).map_err(|error| taken("cannot be looked at").with_source(error))?;
    if !file.file_type().is_socket() {
        return Err(taken("exists and is no socket; remove it or choose another path"));
    }
    let in_use = || {
        let why = "another server listens there; stop it or choose another path";
        Err(Error::new(ErrorKind::InUse, format!("unix:{}: {why}", path.display())))
    };
    // Without the lock it may be of a server that is just starting: that one will listen in a
    // moment.
    for last in if locked { &[true][..] } else { &[false, true] } {
        let probe = new_socket().map_err(|error| taken("no socket").with_source(error))?;
        match rustix::net::connect(&probe, address) {
            Err(Errno::CONNREFUSED) if *last => {}
            Err(Errno::CONNREFUSED) => thread::sleep(10 * PAUSE),
            // AGAIN: its backlog is full, so somebody listens.
            Ok(()) | Err(Errno::AGAIN) => return in_use(),
            Err(error) => {
                return Err(taken("a socket is there, and whether it is in use cannot be told; remove it")
                    .with_source(error));
            }
        }
    }
    log::info!("unix:{}: replacing the socket of a server that is gone", path.display());
    match take_away(path, &file) {
        Ok(true) => Ok(()),
        Ok(false) => in_use(),
        Err(error) => Err(taken("a dead socket cannot be removed").with_source(error)),
    }
}

/// Removes what is at the path if it is `dead` still. False when another server has put its own
/// socket there meanwhile, which stays.
fn take_away(path: &Path, dead: &fs::Metadata) -> std::io::Result<bool> {
    // A name that nobody can foresee.
    let aside = path.with_file_name(format!(".underseal-{:016x}", RandomState::new().hash_one(path)));
    match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
        // The file system cannot rename so.
        Err(Errno::INVAL | Errno::NOSYS) => return fs::remove_file(path).map(|()| true),
        Err(Errno::NOENT) => return Ok(true),
        renamed => renamed?,
    }
    if is(&fs::symlink_metadata(&aside)?, dead) {
        return fs::remove_file(&aside).map(|()| true);
    }
    renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE)?;
    Ok(false)
}

fn is(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether the kernel says that a socket is bound to this path.
pub(super) fn is_bound_to(socket: &OwnedFd, path: &Path) -> bool {
    rustix::net::getsockname(socket).and_then(SocketAddrUnix::try_from).is_ok_and(|address| {
        address.path_bytes().is_some_and(|bound| path.is_absolute() && bound == path.as_os_str().as_bytes())
    })
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl UnixPath {
    pub(super) fn of(path: impl Into<PathBuf>, device: u64, inode: u64) -> Self {
        let path = path.into();
        underseal_sandbox::will_remove(&path, RemovedKind::Socket);
        Self { path, device, inode, left_alone: AtomicBool::new(false) }
    }

    /// What it is known by: its path, device and number.
    pub(super) fn named(&self) -> Result<(String, u64, u64)> {
        let text = self.path.to_str().ok_or_else(|| {
            Error::new(ErrorKind::Listen, format!("unix:{}: the path is no text", self.path.display()))
        })?;
        Ok((text.to_owned(), self.device, self.inode))
    }

    /// The same, not removed when it is dropped.
    pub(super) fn left_alone(self) -> Self {
        self.left_alone.store(true, Ordering::SeqCst);
        self
    }

    pub(super) fn is_ours(&self) {
        self.left_alone.store(false, Ordering::SeqCst);
    }

    /// Sets the file's group and mode: the file's that was made here, whatever is at its path by
    /// now.
    fn let_in(&self, access: SocketAccess) -> std::io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let about = fstat(&file)?;
        if (about.st_dev, about.st_ino) != (self.device, self.inode) {
            return Err(std::io::Error::other("somebody has put something else there"));
        }
        if let Some(group) = access.group {
            chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        }
        // A descriptor that only names its file has no other way.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(chmod(path, Mode::from_raw_mode(access.mode))?)
    }
}

impl Drop for UnixPath {
    fn drop(&mut self) {
        if self.left_alone.load(Ordering::SeqCst) {
            return;
        }
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| {
            file.file_type().is_socket() && (file.dev(), file.ino()) == (self.device, self.inode)
        });
        if ours && let Err(error) = underseal_sandbox::remove(&self.path) {
            log::warn!("unix:{}: the socket could not be removed: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::PermissionsExt, net::UnixListener};

    use tempfile::tempdir;

    use super::*;

    fn bind_own(path: &Path) -> Result<(OwnedFd, UnixPath)> {
        bind(path, SocketAccess::default())
    }

    #[test]
    fn a_socket_is_for_those_who_were_named() {
        let scratch = tempdir().unwrap();
        let path = scratch.path().join("s");
        let group = rustix::process::geteuid().is_root().then_some(4321);
        // More than a usual umask leaves.
        let _bound = bind(&path, SocketAccess { mode: 0o660, group }).unwrap();
        let file = fs::metadata(&path).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o660);
        assert_eq!(file.gid(), group.unwrap_or(rustix::process::getegid().as_raw()));
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn socket_is_closed_to_others_and_removed_at_the_end() {
        let scratch = tempdir().unwrap();
        let path = scratch.path().join("s");
        let bound = bind_own(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn dead_socket_is_replaced_and_a_live_one_is_not() {
        let scratch = tempdir().unwrap();
        let path = scratch.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves its socket behind");
        let live = bind_own(&path).unwrap();
        let error = bind_own(&path).unwrap_err();
        assert!(error.to_string().contains("another server"), "{error}");
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_is_never_touched() {
        let scratch = tempdir().unwrap();
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        fs::write(&file, b"precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [file.as_path(), &link, scratch.path()] {
            let error = bind_own(path).unwrap_err();
            assert!(error.to_string().contains("is no socket"), "{error}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn socket_that_took_our_place_is_left_alone() {
        let scratch = tempdir().unwrap();
        let path = scratch.path().join("s");
        let first = bind_own(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = bind_own(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    /// What a thread finds, which must not wait for ever.
    fn soon<T: Send + 'static>(find: impl FnOnce() -> T + Send + 'static) -> T {
        let (found, finds) = std::sync::mpsc::channel();
        thread::spawn(move || found.send(find()));
        finds.recv_timeout(Duration::from_secs(60)).expect("somebody else's lock was waited for")
    }

    #[test]
    fn somebody_who_keeps_the_directory_locked_keeps_no_server_out() {
        let scratch = tempdir().unwrap();
        let lock = fs::File::open(scratch.path()).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let path = scratch.path().join("s");
        let bind_soon = || {
            let path = path.clone();
            soon(move || bind_own(&path))
        };
        let first = bind_soon().unwrap();
        assert_eq!(bind_soon().unwrap_err().kind(), ErrorKind::InUse);
        drop(first);
        drop(UnixListener::bind(&path).unwrap());
        let second = bind_soon().unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(second);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_server_that_was_faster_keeps_its_place() {
        let scratch = tempdir().unwrap();
        let path = scratch.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let dead = fs::symlink_metadata(&path).unwrap();
        // Kept elsewhere, so that its number is not used again.
        fs::rename(&path, scratch.path().join("dead")).unwrap();
        let _live = bind_own(&path).unwrap();
        assert!(!take_away(&path, &dead).unwrap());
        assert_eq!(bind_own(&path).unwrap_err().kind(), ErrorKind::InUse);
    }

    #[test]
    fn a_directory_that_cannot_be_read_will_do() {
        const SOMEBODY: u32 = 1234;
        let scratch = tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let folder = scratch.path().join("folder");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o300)).unwrap();
        let root = rustix::process::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&folder, Some(SOMEBODY), None).unwrap();
        }
        soon(move || {
            if root {
                // This thread's alone, in Linux.
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(SOMEBODY)).unwrap();
            }
            assert!(fs::read_dir(&folder).is_err());
            let path = folder.join("s");
            drop(UnixListener::bind(&path).unwrap());
            drop(bind_own(&path).unwrap());
            assert!(fs::symlink_metadata(&path).is_err());
        });
    }

    #[test]
    fn bad_paths_are_refused_with_a_reason() {
        let scratch = tempdir().unwrap();
        let table = [
            (scratch.path().join("x".repeat(108)), "too long"),
            (scratch.path().join("none/s"), "directory is not there"),
            (PathBuf::from("/"), "names no file"),
        ];
        for (path, why) in table {
            let error = bind_own(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Listen);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
