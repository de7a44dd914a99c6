//! The other end of a control socket.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Uid, geteuid, pidfd_open};
use underseal_cipher::Key;

use super::line::Line;
use super::protocol::{MAX_REPLY, Reply, Request};
use crate::net::{Deadlined, Socket};
use crate::{Error, ErrorKind, Result};

/// A connection to an open volume, for one request.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    /// What was received beyond the last reply.
    ahead: Vec<u8>,
    /// The server's user.
    user: Uid,
    pid: i32,
    /// The server's process, where the kernel tells.
    server: Option<std::os::fd::OwnedFd>,
}

/// What connecting to the end of time means to a clock.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Client {
    /// Connects to a server of this user's or of root's; root, to anybody's. Where a socket is does
    /// not say whose it is: the kernel does, and nothing is sent to anybody else.
    ///
    /// # Errors
    /// `NotOpen` when nobody listens there; `Forbidden` when it is somebody else's; `Io`.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| {
            let kind = match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ErrorKind::NotOpen,
                io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("{}: cannot connect", path.display())).with_source(e)
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        let peer = socket_peercred(&stream).map_err(|e| failed(e.into()))?;
        let own = geteuid();
        if !own.is_root() && !peer.uid.is_root() && peer.uid != own {
            let context = format!("{}: its server is user {}'s", path.display(), peer.uid.as_raw());
            return Err(Error::new(ErrorKind::Forbidden, context));
        }
        let server = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        Ok(Self {
            socket: Socket::new(stream.into()),
            ahead: Vec::new(),
            user: peer.uid,
            pid: peer.pid.as_raw_pid(),
            server,
        })
    }

    /// The number of the server's process, in the kernel's words; none where that has ended since
    /// it was connected to.
    pub fn server(&self) -> Option<i32> {
        let process = self.server.as_ref()?;
        let ended = poll(
            &mut [PollFd::new(process, PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        );
        (ended == Ok(0)).then_some(self.pid)
    }

    /// Whether the server runs as this user. One that runs as root, or that root asks, may be
    /// another's.
    pub fn is_own(&self) -> bool {
        self.user == geteuid()
    }

    /// Sends the request, and the key that follows it, and waits for the reply for so long.
    ///
    /// # Errors
    /// `Timeout`, `Io`; `Protocol` when the answer is none.
    pub fn ask(&mut self, request: &Request, key: Option<&Key>, limit: Duration) -> Result<Reply> {
        let deadline = Instant::now() + limit.min(FOREVER);
        let mut to = Deadlined { socket: &self.socket, deadline };
        let sent = to
            .write_all(&request.line())
            .and_then(|()| key.map_or(Ok(()), |key| to.write_all(key.as_bytes())));
        match sent {
            // Who refuses a request does not read it to its end.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe || e.kind() == io::ErrorKind::ConnectionReset => {
            }
            sent => sent.map_err(failed)?,
        }
        self.next(limit)
    }

    /// Waits for one more reply: the one that comes at the end, after `Close`.
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
            Error::new(ErrorKind::Protocol, "the answer is none of this protocol").with_source(e)
        })
    }

    /// What is said after the reply to [`Request::HandOver`].
    ///
    /// # Errors
    /// `Protocol` when the server has said more than that.
    pub fn into_line(self) -> Result<Line> {
        match self.ahead.is_empty() {
            true => Ok(Line::new(self.socket)),
            false => Err(Error::new(ErrorKind::Protocol, "the server says what nobody asked for")),
        }
    }

    /// Waits until the server's process has ended.
    ///
    /// # Errors
    /// `Io` when the kernel refuses.
    pub fn wait_for_end(&self) -> Result<()> {
        // Where processes have no descriptors, the connection ends when its process does.
        let (fd, events) = match &self.server {
            Some(process) => (process.as_fd(), PollFlags::IN),
            None => (self.socket.as_fd(), PollFlags::RDHUP),
        };
        loop {
            match poll(&mut [PollFd::from_borrowed_fd(fd, events)], None) {
                Err(Errno::INTR) => {}
                done => return done.map(drop).map_err(|e| io::Error::from(e).into()),
            }
        }
    }
}

/// A read or write that failed: the other side is a server.
fn failed(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::TimedOut => Error::new(ErrorKind::Timeout, "its server did not answer in time"),
        io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Io, "its server went away before it answered"),
        _ => return e.into(),
    }
    .with_source(e)
}
