//! Unix sockets: closed to other users from the first moment; no other file is replaced, and the
//! socket is removed at the end.

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
        AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, chmod, chownat, fchmod,
        flock, fstat, renameat_with,
    },
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use underseal_sandbox::RemovedKind;

use crate::{Error, ErrorKind, Result};

/// How often and at which interval a directory's lock is tried: servers hold it for microseconds.
const LOCK_TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// A socket's entry in its directory. Dropping it removes the entry, unless another file has
/// replaced the socket.
#[derive(Debug)]
pub(super) struct UnixPath {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// True while another process owns the file.
    left_alone: AtomicBool,
}

/// The access to a Unix socket: users with write access to its file may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketAccess {
    /// The file's mode.
    pub mode: u32,
    /// The file's group ID; `None` for this process's group.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    /// Access for this user only.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// Binds a socket and listens.
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
    // The path is made absolute: the process may have another working directory when it removes the
    // file.
    let path =
        &fs::canonicalize(parent).map_err(|error| failed("its directory is not there", error))?.join(name);
    let address = SocketAddrUnix::new(path.as_path())
        .map_err(os("the path is too long for a socket (107 bytes); choose a shorter one"))?;

    // Between bind and listen, the socket looks dead to another server that starts; the lock
    // excludes that server.
    let lock = lock(parent);
    let socket = new_socket().map_err(os("no socket"))?;
    // Linux gives the new file the socket's mode (less the umask): at no moment is it open to other
    // users, and the umask, which all threads share, stays unchanged.
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
        // No client can connect before the socket listens.
        entry.let_in(access).map_err(|error| failed("its mode or group cannot be set", error))?;
    }
    rustix::net::listen(&socket, super::BACKLOG).map_err(os("cannot listen"))?;
    Ok((socket, entry))
}

/// Locks a directory while a socket is made in it. Returns `None` where the directory cannot be
/// read, or stays locked: any user with read access can lock it for ever, so the wait is limited.
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

/// Removes a socket on which no process listens; any other file at the path is an error.
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
    // Without the lock the socket may be of a server that is just starting: it will listen in a
    // moment.
    for last in if locked { &[true][..] } else { &[false, true] } {
        let probe = new_socket().map_err(|error| taken("no socket").with_source(error))?;
        match rustix::net::connect(&probe, address) {
            Err(Errno::CONNREFUSED) if *last => {}
            Err(Errno::CONNREFUSED) => thread::sleep(10 * PAUSE),
            // AGAIN: the backlog is full, so a server listens.
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

/// Removes the file at the path if it is still `dead`. Returns false when another server has put
/// its socket there meanwhile; that socket stays.
fn take_away(path: &Path, dead: &fs::Metadata) -> std::io::Result<bool> {
    // The name cannot be predicted.
    let aside = path.with_file_name(format!(".underseal-{:016x}", RandomState::new().hash_one(path)));
    match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
        // The filesystem does not support this kind of rename.
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

/// Returns true when the kernel reports that a socket is bound to this path.
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
        underseal_sandbox::will_remove(&path, RemovedKind::Socket, (device, inode));
        Self { path, device, inode, left_alone: AtomicBool::new(false) }
    }

    /// Returns the socket's identity: its path, device and inode number.
    pub(super) fn named(&self) -> Result<(String, u64, u64)> {
        let text = self.path.to_str().ok_or_else(|| {
            Error::new(ErrorKind::Listen, format!("unix:{}: the path is no text", self.path.display()))
        })?;
        Ok((text.to_owned(), self.device, self.inode))
    }

    /// The same entry, which dropping does not remove.
    pub(super) fn left_alone(self) -> Self {
        self.left_alone.store(true, Ordering::SeqCst);
        self
    }

    pub(super) fn is_ours(&self) {
        self.left_alone.store(false, Ordering::SeqCst);
    }

    /// Sets the group and mode of the file made here, even if another file is at its path by now.
    fn let_in(&self, access: SocketAccess) -> std::io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let about = fstat(&file)?;
        let is_own_socket = FileType::from_raw_mode(about.st_mode) == FileType::Socket
            && about.st_uid == rustix::process::geteuid().as_raw();
        if !is_own_socket || (about.st_dev, about.st_ino) != (self.device, self.inode) {
            return Err(std::io::Error::other("another file was put there"));
        }
        if let Some(group) = access.group {
            chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        }
        // An O_PATH descriptor permits these changes only through /proc.
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
        // The mode has more bits than a usual umask leaves.
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

    /// Runs `find` on a thread, with a time limit.
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
        // The file is kept under another name, so that its inode number is not used again.
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
                // On Linux this changes the user of this thread only.
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
