//! Listening sockets.

mod carried;
mod unix;

use std::{
    fmt,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    fs::OFlags,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

pub use self::carried::{CarriedListener, ListenerPlace};
pub use self::unix::SocketAccess;
use self::unix::UnixPath;
use super::{Endpoint, Socket};
use crate::{Error, ErrorKind, Result};

/// A listening socket. Dropping it removes the file of a Unix socket that was bound here.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
    path: Option<UnixPath>,
}

/// The address that a listener is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Unix(String),
    Tcp(SocketAddr),
}

/// Listens on an endpoint: one socket, or for TCP one for each address its host has.
///
/// A Unix socket is created with mode 0600. A socket that a dead server left behind is replaced;
/// any other file at its path is an error.
///
/// # Errors
/// [`ErrorKind::Listen`] names the endpoint.
pub fn listen(endpoint: &Endpoint) -> Result<Vec<Listener>> {
    Found::look_up(endpoint)?.listen()
}

/// An endpoint and the addresses of its host: the addresses that were checked are the ones that are
/// bound, and binding them waits for no name server.
#[derive(Debug, Clone)]
pub struct Found {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    access: SocketAccess,
}

impl Found {
    /// Resolves the host's name; a Unix socket has none.
    ///
    /// # Errors
    /// [`ErrorKind::Listen`] names the endpoint.
    pub fn look_up(endpoint: &Endpoint) -> Result<Self> {
        let addresses = match endpoint {
            Endpoint::Unix(_) => Vec::new(),
            Endpoint::Tcp { host, port } => {
                let found = (host.as_str(), *port).to_socket_addrs();
                found.map_err(|source| cannot_listen(endpoint, source))?.collect()
            }
        };
        Ok(Self { endpoint: endpoint.clone(), addresses, access: SocketAccess::default() })
    }

    /// Sets who may connect to a Unix socket.
    #[must_use]
    pub fn with_access(mut self, access: SocketAccess) -> Self {
        self.access = access;
        self
    }

    /// Returns true when traffic could leave the machine.
    pub fn is_remote(&self) -> bool {
        self.addresses.iter().any(|address| !address.ip().to_canonical().is_loopback())
    }

    /// Listens on the endpoint, as [`listen`].
    ///
    /// # Errors
    /// [`ErrorKind::Listen`] names the endpoint.
    pub fn listen(&self) -> Result<Vec<Listener>> {
        let endpoint = &self.endpoint;
        match endpoint {
            Endpoint::Unix(path) => {
                let (fd, path) = unix::bind(path, self.access)?;
                Ok(vec![Listener { fd, address: Address::Unix(endpoint.to_string()), path: Some(path) }])
            }
            Endpoint::Tcp { .. } => self.listen_tcp(),
        }
    }

    fn listen_tcp(&self) -> Result<Vec<Listener>> {
        let failed = |source| cannot_listen(&self.endpoint, source);
        let mut listeners = Vec::new();
        let mut first_error = None;
        for &address in &self.addresses {
            // "localhost" may have an address that this machine lacks: one working address is
            // enough.
            let bound = TcpListener::bind(address).and_then(|socket| {
                rustix::net::listen(&socket, BACKLOG)?;
                Listener::tcp(socket.into())
            });
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        match first_error {
            Some(error) if listeners.is_empty() => Err(failed(error)),
            _ => Ok(listeners),
        }
    }
}

impl Listener {
    /// Wraps a descriptor that another process bound and listens on. Fails with
    /// [`ErrorKind::Listen`] when it is no listening stream socket of the Unix or an internet
    /// family.
    pub(super) fn adopt(fd: OwnedFd, name: &str) -> Result<Self> {
        let no = |why: &str| Error::new(ErrorKind::Listen, format!("{name}: {why}"));
        let kind = sockopt::socket_type(&fd).map_err(|error| no("is no socket").with_source(error))?;
        if kind != SocketType::STREAM || sockopt::socket_acceptconn(&fd) != Ok(true) {
            return Err(no("is no listening stream socket (in a systemd unit: ListenStream=, Accept=no)"));
        }
        match sockopt::socket_domain(&fd) {
            Ok(AddressFamily::UNIX) => Self { fd, address: Address::Unix(name.into()), path: None }.ready(),
            Ok(AddressFamily::INET | AddressFamily::INET6) => Self::tcp(fd),
            _ => return Err(no("is neither a Unix nor a TCP socket")),
        }
        .map_err(|error| no("cannot be used").with_source(error))
    }

    /// Returns the TCP address, with the port the kernel chose; `None` for a Unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self.address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }

    /// Returns true when traffic can leave the machine.
    pub fn is_remote(&self) -> bool {
        self.tcp_address().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// Accepts a waiting client; `None` when the client has disconnected, or another process
    /// accepted it.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<Socket>> {
        let socket = match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            accepted => accepted?,
        };
        if let Address::Tcp(_) = self.address {
            // Setting these fails only for a client that has disconnected, which its thread will
            // notice.
            let _ = tune(&socket);
        }
        Ok(Some(Socket::new(socket)))
    }

    fn tcp(fd: OwnedFd) -> std::io::Result<Self> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        Self { fd, address: Address::Tcp(address), path: None }.ready()
    }

    /// Makes the socket non-blocking: a client that poll announced may be gone by the time of the
    /// accept.
    fn ready(self) -> std::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
        Ok(self)
    }
}

/// How many connections wait in the kernel until they are accepted. The kernel caps it at
/// net.core.somaxconn (4096). Beyond it, clients that connect without blocking (libnbd) fail on
/// Unix sockets.
const BACKLOG: i32 = i32::MAX;

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(name) => f.write_str(name),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Sets TCP options. Replies are written whole, so waiting to fill a segment only adds latency. The
/// connection of a client whose machine died is closed after two minutes.
fn tune(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(socket, 4)
}

fn cannot_listen(endpoint: &Endpoint, source: std::io::Error) -> Error {
    Error::new(ErrorKind::Listen, format!("{endpoint}: cannot listen")).with_source(source)
}
