//! A socket that never blocks, and the steps from an address to a negotiated connection.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use underseal_nbd_protocol::{CommandFlags, RequestHeader, RequestType};
use underseal_sandbox::{Target, connect_to};

use super::address::{NbdAddress, ServerAddress};
use super::handshake::{ClientHandshake, HandshakeRefusal, ServerExport};
use super::replies::ReplySource;
use crate::monotonic;

/// The time limit for a server to accept and to negotiate.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The time after which TCP gives up on unacknowledged bytes.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// A connected socket.
pub(super) struct NbdSocket {
    fd: OwnedFd,
    /// True once the connection's end, and its possible losses, are counted.
    is_counted: AtomicBool,
}

impl NbdSocket {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, is_counted: AtomicBool::new(false) }
    }

    /// Tells the server that no more requests come. Without this message the server sees the
    /// connection close.
    pub(super) fn say_goodbye(&self) {
        // The server closes its side then, which is no loss.
        self.count();
        let goodbye = RequestHeader {
            flags: CommandFlags::empty(),
            command: RequestType::Disconnect,
            cookie: [0; 8],
            offset: 0,
            length: 0,
        };
        let _ = self.send(&[IoSlice::new(&goodbye.encode())]);
    }

    /// Sends as many bytes as the socket takes now.
    pub(super) fn send(&self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        retry(|| sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags))
    }

    /// Receives available bytes. No bytes mean the end of the stream.
    pub(super) fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        retry(|| recv(&self.fd, &mut *into, RecvFlags::DONTWAIT).map(|(n, _)| n))
    }

    /// True when the server has closed the connection. Unread data means that it has not.
    pub(super) fn is_dead(&self) -> bool {
        let looked = retry(|| recv(&self.fd, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT));
        !matches!(looked, Ok((1, _)) | Err(Errno::AGAIN))
    }

    /// True once the connection's end is counted.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted.load(SeqCst)
    }

    /// Counts the connection's end. True the first time only.
    pub(super) fn count(&self) -> bool {
        !self.is_counted.swap(true, SeqCst)
    }

    /// Ends the connection for both sides, which wakes all waiting threads.
    pub(super) fn shut(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

impl ReplySource for &NbdSocket {
    fn fill(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        let parts = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
        retry(|| rustix::io::readv(&self.fd, parts))
    }
}

impl AsFd for NbdSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// A later try may succeed.
    System(&'static str, Errno),
    /// The server refuses, or is no NBD server.
    Refused(HandshakeRefusal),
}

impl std::fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(what, errno) => write!(f, "{what}: {errno}"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl From<HandshakeRefusal> for ConnectFailure {
    fn from(why: HandshakeRefusal) -> Self {
        Self::Refused(why)
    }
}

/// A connection that is being made: connecting, then negotiating.
pub(super) struct ConnectAttempt {
    socket: Arc<NbdSocket>,
    connecting: bool,
    handshake: ClientHandshake,
    output: Vec<u8>,
    input: Vec<u8>,
    pub(super) deadline: Duration,
}

/// The state of an attempt.
pub(super) enum AttemptProgress {
    /// The attempt waits until the socket can be read, or (`true`) written.
    Waits(bool),
    Ready(ServerExport),
}

impl ConnectAttempt {
    /// Begins to connect to the `number`th of `addresses` in turn (none are needed for a Unix
    /// socket).
    pub(super) fn begin(
        address: &NbdAddress,
        addresses: &[SocketAddr],
        number: usize,
        wants_allocation: bool,
    ) -> Result<Self, ConnectFailure> {
        let cannot = |e| ConnectFailure::System("cannot connect", e);
        let target = match &address.place {
            ServerAddress::Unix(path) => Target::Unix(path),
            ServerAddress::Tcp { .. } => {
                let to = addresses.get(number % addresses.len().max(1)).ok_or(cannot(Errno::HOSTUNREACH))?;
                Target::Tcp(*to)
            }
        };
        let connected = connect_to(target);
        let (fd, connecting) =
            connected.map_err(|e| cannot(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        if let Target::Tcp(_) = target {
            // All options are optional: headers leave at once, and a lost host is noticed.
            let _ = sockopt::set_tcp_nodelay(&fd, true);
            let _ = sockopt::set_socket_keepalive(&fd, true);
            let _ = sockopt::set_tcp_keepidle(&fd, Duration::from_secs(10));
            let _ = sockopt::set_tcp_keepintvl(&fd, Duration::from_secs(5));
            let limit = u32::try_from(UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX);
            let _ = sockopt::set_tcp_user_timeout(&fd, limit);
        }
        Ok(Self {
            socket: Arc::new(NbdSocket::new(fd)),
            connecting,
            handshake: ClientHandshake::new(&address.export, wants_allocation),
            output: Vec::new(),
            input: Vec::new(),
            deadline: monotonic() + HANDSHAKE_LIMIT,
        })
    }

    pub(super) fn socket(&self) -> &Arc<NbdSocket> {
        &self.socket
    }

    pub(super) fn into_socket(self) -> Arc<NbdSocket> {
        self.socket
    }

    /// Continues as far as possible without waiting.
    pub(super) fn advance(&mut self) -> Result<AttemptProgress, ConnectFailure> {
        if monotonic() > self.deadline {
            return Err(ConnectFailure::System("the server does not answer", Errno::TIMEDOUT));
        }
        if self.connecting {
            let fd = &mut [PollFd::new(&self.socket, PollFlags::OUT)];
            if !matches!(poll(fd, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1)) {
                return Ok(AttemptProgress::Waits(true));
            }
            let error = sockopt::socket_error(&self.socket).unwrap_or_else(Err);
            error.map_err(|e| ConnectFailure::System("cannot connect", e))?;
            self.connecting = false;
        }
        let lost = |e| ConnectFailure::System("the connection broke in the handshake", e);
        loop {
            self.output.extend(self.handshake.take_output());
            while !self.output.is_empty() {
                match self.socket.send(&[IoSlice::new(&self.output)]) {
                    Ok(sent) => drop(self.output.drain(..sent)),
                    Err(Errno::AGAIN) => return Ok(AttemptProgress::Waits(true)),
                    Err(e) => return Err(lost(e)),
                }
            }
            // Exactly the message's bytes are read: following bytes do not belong to the handshake.
            let wants = self.handshake.wants(&self.input)?;
            if wants > 0 {
                let had = self.input.len();
                self.input.resize(had + wants, 0);
                let received = self.socket.recv(&mut self.input[had..]);
                self.input.truncate(had + received.unwrap_or(0));
                match received {
                    Ok(0) => {
                        return Err(HandshakeRefusal::from(
                            "the server closed the connection in the handshake",
                        )
                        .into());
                    }
                    Ok(_) => {}
                    Err(Errno::AGAIN) => return Ok(AttemptProgress::Waits(false)),
                    Err(e) => return Err(lost(e)),
                }
                continue;
            }
            let done = self.handshake.take(&self.input)?;
            self.input.clear();
            if let Some(export) = done {
                return Ok(AttemptProgress::Ready(export));
            }
        }
    }

    /// Waits until the connection is made, at most until the deadline.
    pub(super) fn finish(mut self) -> Result<(Arc<NbdSocket>, ServerExport), ConnectFailure> {
        loop {
            match self.advance()? {
                AttemptProgress::Ready(export) => return Ok((self.socket, export)),
                AttemptProgress::Waits(to_write) => wait(&self.socket, to_write, self.deadline),
            }
        }
    }
}

/// Waits until the socket can be read or written, or until the deadline.
pub(super) fn wait(socket: &NbdSocket, to_write: bool, deadline: Duration) {
    let flags = if to_write { PollFlags::OUT } else { PollFlags::IN };
    let left = deadline.saturating_sub(monotonic()) + Duration::from_millis(1);
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    // After an interruption or failure the caller looks again.
    let _ = poll(&mut [PollFd::new(socket, flags)], Some(&left));
}

/// Connects and negotiates; each address of a host has the time `limit`.
pub(super) fn connect_now(
    address: &NbdAddress,
    addresses: &[SocketAddr],
    wants_allocation: bool,
    limit: Duration,
) -> Result<(Arc<NbdSocket>, ServerExport), ConnectFailure> {
    let mut result = Err(ConnectFailure::System("cannot connect", Errno::HOSTUNREACH));
    for number in 0..addresses.len().max(1) {
        result =
            ConnectAttempt::begin(address, addresses, number, wants_allocation).and_then(|mut attempt| {
                attempt.deadline = monotonic() + limit;
                attempt.finish()
            });
        if !matches!(result, Err(ConnectFailure::System(..))) {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_connection_is_counted_before_the_server_hears_of_its_end() {
        for _ in 0..100 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let socket = NbdSocket::new(ours.into());
            let goodbye = std::thread::scope(|scope| {
                let heard = scope.spawn(|| {
                    let mut goodbye = [0; 28];
                    theirs.read_exact(&mut goodbye).unwrap();
                    assert!(socket.is_counted());
                    goodbye
                });
                socket.say_goodbye();
                heard.join().unwrap()
            });
            assert_eq!(RequestHeader::parse(&goodbye).unwrap().command, RequestType::Disconnect);
        }
    }
}
