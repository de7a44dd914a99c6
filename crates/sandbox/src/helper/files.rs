//! The helper's operations on files and sockets: removes, opens and connects to those of a list.
//!
//! A message is an opcode byte and a path or an address. Lower-case opcodes add to the list, until
//! it is sealed; upper-case opcodes request an operation on a listed entry. A file is listed with
//! the device and inode number that the server found it to have: a path may lead elsewhere when it
//! is walked a second time. The helper walks no path for a request: it has a descriptor of each
//! file's folder, from the time when the file was listed, and removes a file only while that has
//! the same device and inode number.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with, socketpair,
};

use super::{HELPER, Helper};
use crate::links::{self, LastName};

/// The socket of syslog.
const SYSLOG: &str = "/dev/log";
/// The length of the longest message, which has a path.
const LONGEST: usize = 8192;

/// The address of a server.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A Unix socket.
    Unix(&'a Path),
    /// A resolved address.
    Tcp(SocketAddr),
}

impl Target<'_> {
    fn text(self) -> Vec<u8> {
        match self {
            Self::Unix(path) => [b"u", path.as_os_str().as_bytes()].concat(),
            Self::Tcp(address) => format!("t{address}").into_bytes(),
        }
    }

    fn of(text: &[u8]) -> Option<Target<'_>> {
        match text.split_first()? {
            (b'u', path) => Some(Target::Unix(Path::new(OsStr::from_bytes(path)))),
            (b't', address) => Some(Target::Tcp(std::str::from_utf8(address).ok()?.parse().ok()?)),
            _ => None,
        }
    }

    /// Returns a connected socket, or a connecting socket with `true`.
    fn connect(self) -> rustix::io::Result<(OwnedFd, bool)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = |family| socket_with(family, SocketType::STREAM, flags, None);
        let (fd, connected) = match self {
            Self::Unix(path) => {
                let to = SocketAddrUnix::new(path)?;
                let fd = socket(AddressFamily::UNIX)?;
                let connected = rustix::io::retry_on_intr(|| connect(&fd, &to));
                (fd, connected)
            }
            Self::Tcp(to) => {
                let fd = socket(if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
                let connected = rustix::io::retry_on_intr(|| connect(&fd, &to));
                (fd, connected)
            }
        };
        match connected {
            Ok(()) => Ok((fd, false)),
            Err(Errno::INPROGRESS) => Ok((fd, true)),
            Err(e) => Err(e),
        }
    }
}

/// The kinds of files that servers remove at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedKind {
    /// A Unix socket.
    Socket,
    /// A regular file: the pid file, or the record of the volume.
    RegularFile,
}

impl RemovedKind {
    const fn letter(self) -> u8 {
        match self {
            Self::Socket => b'r',
            Self::RegularFile => b'p',
        }
    }

    const fn file_type(self) -> FileType {
        match self {
            Self::Socket => FileType::Socket,
            Self::RegularFile => FileType::RegularFile,
        }
    }
}

/// Lists a file, by its path and its device and inode number, for a later [`remove`]. A file of
/// another kind or number is not listed. Without a helper nothing needs to be listed.
pub fn will_remove(path: &Path, kind: RemovedKind, file: (u64, u64)) {
    list_file(kind.letter(), path, file);
}

/// Lists the log file, which is open as `file`, for a later [`open_log`].
pub fn will_open_log(path: &Path, file: impl AsFd) {
    // No file has these numbers.
    let file = fstat(file).map_or((0, 0), |about| (about.st_dev, about.st_ino));
    list_file(b'l', path, file);
}

/// Lists a server for a later [`connect_to`].
pub fn will_connect(to: Target<'_>) {
    list(b's', &to.text());
}

/// Removes a file: the listed one, if a helper runs.
///
/// # Errors
/// `ESTALE` when another file has taken the place, `EPERM` when the file is not on the list, and
/// errors of the system.
pub fn remove(path: &Path) -> io::Result<()> {
    match HELPER.get() {
        None => fs::remove_file(path),
        Some(helper) => ask(helper, b'R', path.as_os_str().as_bytes()).map(drop),
    }
}

/// Opens the log file to append to it, and makes it where it is missing. A link of another user is
/// not followed.
///
/// # Errors
/// `EPERM` when the helper has no log file on its list; the kinds of
/// [`canonical`](crate::canonical).
pub fn open_log(path: &Path) -> io::Result<File> {
    match HELPER.get() {
        None => links::append(path),
        Some(helper) => ask(helper, b'L', b"")?.1.map(File::from).ok_or_else(|| Errno::BADMSG.into()),
    }
}

/// Begins to connect to a server, with a non-blocking socket: returns the socket, and whether the
/// connection is still in progress.
///
/// # Errors
/// `EPERM` when the server is not on the helper's list, and errors of the system.
pub fn connect_to(to: Target<'_>) -> io::Result<(OwnedFd, bool)> {
    match HELPER.get() {
        None => Ok(to.connect()?),
        Some(helper) => {
            let (connecting, fd) = ask(helper, b'S', &to.text())?;
            Ok((fd.ok_or(Errno::BADMSG)?, connecting))
        }
    }
}

/// Returns a datagram socket that is connected to syslog.
///
/// # Errors
/// Errors of `socket(2)` and `connect(2)`.
pub fn connect_to_syslog() -> io::Result<OwnedFd> {
    match HELPER.get() {
        None => syslog(),
        Some(helper) => ask(helper, b'Y', b"")?.1.ok_or_else(|| Errno::BADMSG.into()),
    }
}

fn syslog() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(SYSLOG)?)?;
    Ok(fd)
}

/// Seals the list: requests for unlisted entries fail.
pub(crate) fn seal() {
    list(b'!', b"");
}

fn list(letter: u8, what: &[u8]) {
    list_named(letter, &String::from_utf8_lossy(what), what);
}

fn list_file(letter: u8, path: &Path, (device, inode): (u64, u64)) {
    let what = [&device.to_ne_bytes(), &inode.to_ne_bytes(), path.as_os_str().as_bytes()].concat();
    list_named(letter, &path.to_string_lossy(), &what);
}

fn list_named(letter: u8, name: &str, what: &[u8]) {
    let Some(helper) = HELPER.get() else { return };
    if let Err(e) = ask(helper, letter, what) {
        log::warn!(
            "{name}: the sandbox's helper cannot find it: it will not be removed, opened or reached later: {e}"
        );
    }
}

/// Checks that the helper answers. Fails with `TimedOut` when it does not.
pub(super) fn check_answers(helper: &Helper) -> io::Result<()> {
    match ask(helper, b'?', b"") {
        // The helper knows no such operation, and says so.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => Ok(()),
        answered => answered.map(drop),
    }
}

/// Returns whether the connection is still in progress, and the descriptor, if any.
fn ask(helper: &Helper, letter: u8, what: &[u8]) -> io::Result<(bool, Option<OwnedFd>)> {
    let mut socket = helper.files.lock().unwrap_or_else(PoisonError::into_inner);
    let mut answer = [0; 4];
    let (len, fd) = socket.exchange(&[&[letter], what], None, &mut answer)?;
    if len != answer.len() {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the sandbox's helper process is gone"));
    }
    match i32::from_ne_bytes(answer) {
        0 => Ok((false, fd)),
        libc::EINPROGRESS => Ok((true, fd)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

pub(super) fn send(to: &OwnedFd, parts: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    rustix::io::retry_on_intr(|| sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

pub(super) fn receive(from: BorrowedFd<'_>, into: &mut [u8]) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::io::retry_on_intr(|| recvmsg(from, &mut [IoSliceMut::new(&mut *into)], &mut control, flags))?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((received.bytes, fds.flatten().next()))
}

/// Returns the two ends of a socket for messages, not for a byte stream.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A file by its folder, with its identity when it was listed.
struct Entry {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    file: (u64, u64),
}

impl Entry {
    /// Returns the entry, and the file's type.
    fn of(path: &Path) -> io::Result<(Self, FileType)> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).ok_or(Errno::INVAL)?;
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let folder = open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Self::at(path, folder, name)
    }

    fn at(path: &Path, folder: OwnedFd, name: OsString) -> io::Result<(Self, FileType)> {
        let about = statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        let entry = Self { path: path.to_owned(), folder, name, file: (about.st_dev, about.st_ino) };
        Ok((entry, FileType::from_raw_mode(about.st_mode)))
    }

    /// Returns the entry of a log file: links to it are followed now, and never again.
    fn of_log(path: &Path) -> io::Result<Self> {
        let LastName { folder, name, .. } = LastName::of(path)?;
        Ok(Self::at(path, folder, name)?.0)
    }

    /// Returns the entry when its file has these numbers. Fails with `ESTALE` for another file.
    fn if_still(self, file: (u64, u64)) -> io::Result<Self> {
        if self.file == file { Ok(self) } else { Err(Errno::STALE.into()) }
    }

    fn remove(&self) -> rustix::io::Result<()> {
        let about = statat(&self.folder, &*self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (about.st_dev, about.st_ino) != self.file {
            return Err(Errno::STALE);
        }
        unlinkat(&self.folder, &*self.name, AtFlags::empty())
    }

    /// Opens a regular file of this name for appending, and creates it if missing.
    fn append(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NOCTTY;
        // The open does not wait for a reader of a pipe.
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, &*self.name, flags, Mode::RUSR | Mode::WUSR)?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        Ok(file)
    }
}

/// Splits what lists a file: its device and inode number, then its path.
fn numbered(what: &[u8]) -> io::Result<(&Path, (u64, u64))> {
    let (device, rest) = what.split_first_chunk().ok_or(Errno::INVAL)?;
    let (inode, path) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
    let file = (u64::from_ne_bytes(*device), u64::from_ne_bytes(*inode));
    Ok((Path::new(OsStr::from_bytes(path)), file))
}

/// The list of entries that may be requested.
#[derive(Default)]
struct Listed {
    removable: Vec<Entry>,
    log: Option<Entry>,
    servers: Vec<Vec<u8>>,
    is_sealed: bool,
}

impl Listed {
    /// Lists a file of this kind. A path from another process may lead to a file of another kind.
    fn list_removable(&mut self, what: &[u8], kind: RemovedKind) -> io::Result<()> {
        let (path, file) = numbered(what)?;
        self.removable.retain(|entry| entry.path != path);
        let (entry, found) = Entry::of(path)?;
        if found != kind.file_type() {
            return Err(Errno::PERM.into());
        }
        self.removable.push(entry.if_still(file)?);
        Ok(())
    }

    fn list_log(&mut self, what: &[u8]) -> io::Result<()> {
        let (path, file) = numbered(what)?;
        self.log = Some(Entry::of_log(path)?.if_still(file)?);
        Ok(())
    }

    /// Adds to the list, or performs a listed operation.
    fn answer(&mut self, letter: u8, what: &[u8]) -> io::Result<(bool, Option<OwnedFd>)> {
        let path = Path::new(OsStr::from_bytes(what));
        match letter {
            b'r' | b'p' | b'l' | b's' | b'!' if self.is_sealed => return Err(Errno::PERM.into()),
            b'r' => self.list_removable(what, RemovedKind::Socket)?,
            b'p' => self.list_removable(what, RemovedKind::RegularFile)?,
            b'l' => self.list_log(what)?,
            b's' => self.servers.push(what.to_owned()),
            b'!' => self.is_sealed = true,
            b'R' => self.removable.iter().find(|entry| entry.path == path).ok_or(Errno::PERM)?.remove()?,
            b'L' => return Ok((false, Some(self.log.as_ref().ok_or(Errno::PERM)?.append()?))),
            b'S' => {
                let listed = self.servers.iter().find(|server| *server == what).ok_or(Errno::PERM)?;
                let (fd, connecting) = Target::of(listed).ok_or(Errno::INVAL)?.connect()?;
                return Ok((connecting, Some(fd)));
            }
            b'Y' => return Ok((false, Some(syslog()?))),
            // Also asked to find out whether there is an answer.
            _ => return Err(Errno::INVAL.into()),
        }
        Ok((false, None))
    }
}

/// Answers until the server has ended.
pub(super) fn serve(socket: &OwnedFd) -> io::Result<()> {
    let mut listed = Listed::default();
    let mut message = vec![0; LONGEST];
    loop {
        // A descriptor in a message is closed.
        let (len, _) = receive(socket.as_fd(), &mut message)?;
        let Some((letter, what)) = message[..len].split_first() else { return Ok(()) };
        let (errno, fd) = match listed.answer(*letter, what) {
            Ok((false, fd)) => (0, fd),
            Ok((true, fd)) => (libc::EINPROGRESS, fd),
            Err(e) => (e.raw_os_error().unwrap_or(libc::EIO), None),
        };
        send(socket, &[&errno.to_ne_bytes()], fd.as_ref().map(AsFd::as_fd))?;
    }
}
