//! The client's end of a control socket.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{PidfdFlags, Uid, geteuid, pidfd_open};
use underseal_cipher::Key;

use super::line::Line;
use super::protocol::{MAX_REPLY, Reply, Request};
use crate::net::{Deadlined, Socket, timespec};
use crate::{Error, ErrorKind, Result};

/// A connection to an open volume, for one request.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    /// Bytes received beyond the last reply.
    ahead: Vec<u8>,
    /// The server's user.
    user: Uid,
    pid: i32,
    /// The server's process, on kernels that report it.
    server: Option<OwnedFd>,
}

/// A timeout that stands for "never".
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Client {
    /// Connects to a server of the caller's user or of root; root may connect to any user's server.
    /// The socket's path does not prove its owner: the kernel reports the peer's user, and a client
    /// sends nothing to a server of a third user.
    ///
    /// # Errors
    /// `NotOpen` when no server listens on the path; `Forbidden` when a third user's server does;
    /// `Timeout` when the server's queue of connections is still full after `limit`; `Io`.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self> {
        let failed = |e: io::Error| {
            let kind = match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ErrorKind::NotOpen,
                io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
                // The socket's timeout is over.
                io::ErrorKind::WouldBlock => ErrorKind::Timeout,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("{}: cannot connect", path.display())).with_source(e)
        };
        let stream = connected(path, limit).map_err(|e| failed(e.into()))?;
        let peer = socket_peercred(&stream).map_err(|e| failed(e.into()))?;
        let own = geteuid();
        if !own.is_root() && !peer.uid.is_root() && peer.uid != own {
            let context = format!("{}: its server is user {}'s", path.display(), peer.uid.as_raw());
            return Err(Error::new(ErrorKind::Forbidden, context));
        }
        let server = match peer_pidfd(&stream) {
            // Before Linux 6.5. Another process may have the number by now.
            Err(Errno::NOPROTOOPT) => pidfd_open(peer.pid, PidfdFlags::empty()),
            process => process,
        };
        Ok(Self {
            socket: Socket::new(stream),
            ahead: Vec::new(),
            user: peer.uid,
            pid: peer.pid.as_raw_pid(),
            server: server.ok(),
        })
    }

    /// Returns the PID of the server's process, or `None` when that process has ended since the
    /// client connected.
    pub fn server(&self) -> Option<i32> {
        self.server.as_ref()?;
        (!self.server_ends_within(Duration::ZERO)).then_some(self.pid)
    }

    /// Waits up to `limit` for the end of the server's process. Returns true when it has ended,
    /// false also where the process is unknown.
    pub fn server_ends_within(&self, limit: Duration) -> bool {
        let Some(process) = &self.server else { return false };
        let limit = Timespec::try_from(limit.min(FOREVER)).ok();
        poll(&mut [PollFd::new(process, PollFlags::IN)], limit.as_ref()).is_ok_and(|ended| ended > 0)
    }

    /// Returns true when the server runs as the caller's user. A server that runs as root, or that
    /// root connects to, may belong to another user.
    pub fn is_own(&self) -> bool {
        self.user == geteuid()
    }

    /// Sends the request, and the key that follows it, and waits up to `limit` for the reply.
    ///
    /// # Errors
    /// `Timeout`, `Io`; `Protocol` when the reply cannot be parsed.
    pub fn ask(&mut self, request: &Request, key: Option<&Key>, limit: Duration) -> Result<Reply> {
        let deadline = Instant::now() + limit.min(FOREVER);
        let mut to = Deadlined { socket: &self.socket, deadline };
        let sent = to
            .write_all(&request.line())
            .and_then(|()| key.map_or(Ok(()), |key| to.write_all(key.as_bytes())));
        match sent {
            // A server that refuses a request may not read it to its end.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe || e.kind() == io::ErrorKind::ConnectionReset => {
            }
            sent => sent.map_err(failed)?,
        }
        self.next(limit)
    }

    /// Waits for one more reply: after `Close`, the server sends a second one when it ends.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn next(&mut self, limit: Duration) -> Result<Reply> {
        let from = Deadlined { socket: &self.socket, deadline: Instant::now() + limit.min(FOREVER) };
        let end = loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.ahead.len() >= MAX_REPLY {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("a reply of more than {MAX_REPLY} bytes"),
                ));
            }
            let mut piece = [0; 16 << 10];
            let read = from.read_what_came(&mut piece).map_err(failed)?;
            if read == 0 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            self.ahead.extend(&piece[..read]);
        };
        let line: Vec<u8> = self.ahead.drain(..=end).collect();
        Reply::parse(&line).map_err(|e| {
            Error::new(ErrorKind::Protocol, "the reply does not follow this protocol").with_source(e)
        })
    }

    /// Returns the handover channel over this connection, after the reply to [`Request::HandOver`].
    ///
    /// # Errors
    /// `Protocol` when the server has sent bytes beyond that reply.
    pub fn into_line(self) -> Result<Line> {
        match self.ahead.is_empty() {
            true => Ok(Line::new(self.socket)),
            false => Err(Error::new(ErrorKind::Protocol, "the server says what nobody asked for")),
        }
    }

    /// Waits up to `limit` until the server's process has ended.
    ///
    /// # Errors
    /// `Timeout`; `Io` when the kernel refuses.
    pub fn wait_for_end(&self, limit: Duration) -> Result<()> {
        // Without a pidfd, the end of the connection shows that the process has ended.
        let (fd, events) = match &self.server {
            Some(process) => (process.as_fd(), PollFlags::IN),
            None => (self.socket.as_fd(), PollFlags::RDHUP),
        };
        let deadline = Instant::now() + limit.min(FOREVER);
        loop {
            let left = timespec(deadline.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&left)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(failed(io::ErrorKind::TimedOut.into())),
                done => return done.map(drop).map_err(|e| io::Error::from(e).into()),
            }
        }
    }
}

/// Returns a socket that is connected within `limit`. The kernel makes a client wait while the
/// server's queue of connections is full.
fn connected(path: &Path, limit: Duration) -> rustix::io::Result<OwnedFd> {
    let to = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel takes a timeout of zero for none.
    let limit = limit.clamp(Duration::from_millis(1), FOREVER);
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &to))?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// Converts the error of a read or write on the connection to the server.
fn failed(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::TimedOut => Error::new(ErrorKind::Timeout, "its server did not answer in time"),
        io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Io, "its server went away before it answered"),
        _ => return e.into(),
    }
    .with_source(e)
}

/// Returns the process that listens at the other end, even where its number is another one's by
/// now. Fails with `NOPROTOOPT` before Linux 6.5, with another error when the process has ended.
#[expect(unsafe_code, reason = "a socket option that rustix does not offer")]
fn peer_pidfd(stream: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = libc::socklen_t::try_from(size_of_val(&fd)).expect("an int is short");
    let (fd_at, len_at) = ((&raw mut fd).cast(), &raw mut len);
    // SAFETY: the kernel writes one descriptor number of `len` bytes.
    match unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD, fd_at, len_at) }
    {
        // SAFETY: the descriptor is new, and nothing else has it.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
