//! Sockets that clients connect to.

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

/// A listening socket. A Unix socket that was bound here is removed from its directory when this is
/// dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
    path: Option<UnixPath>,
}

/// What a listener is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Unix(String),
    Tcp(SocketAddr),
}

/// Listens on an endpoint: one socket, or for TCP one for each address its host has.
///
/// A Unix socket is created with mode 0600. One that a dead server left behind is replaced;
/// anything else at its path is an error.
///
/// # Errors
/// [`ErrorKind::Listen`] names the endpoint.
pub fn listen(endpoint: &Endpoint) -> Result<Vec<Listener>> {
    Found::look_up(endpoint)?.listen()
}

/// An endpoint and the addresses of its host: what is checked is what is bound, and binding it
/// waits for nobody.
#[derive(Debug, Clone)]
pub struct Found {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    access: SocketAccess,
}

impl Found {
    /// Looks the host's name up; a Unix socket has none.
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

    /// The same, where a Unix socket is for others too.
    #[must_use]
    pub fn with_access(mut self, access: SocketAccess) -> Self {
        self.access = access;
        self
    }

    /// Whether what travels there could leave the machine.
    pub fn is_remote(&self) -> bool {
        self.addresses.iter().any(|address| !address.ip().to_canonical().is_loopback())
    }

    /// As [`listen`].
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
            // "localhost" may have an address that this machine does not: one that works is enough.
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
    /// Takes over a descriptor that somebody else bound and listens on.
    ///
    /// # Errors
    /// [`ErrorKind::Listen`]: it is no listening stream socket of the Unix or an internet family.
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

    /// The TCP address, with the port the kernel chose; `None` for a Unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self.address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }

    /// Whether what travels here leaves the machine.
    pub fn is_remote(&self) -> bool {
        self.tcp_address().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// A waiting client; nothing when it is gone again, or another process took it.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<Socket>> {
        let socket = match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            accepted => accepted?,
        };
        if let Address::Tcp(_) = self.address {
            // These fail only for a client that is gone again, as its thread will see.
            let _ = tune(&socket);
        }
        Ok(Some(Socket::new(socket)))
    }

    fn tcp(fd: OwnedFd) -> std::io::Result<Self> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        Self { fd, address: Address::Tcp(address), path: None }.ready()
    }

    /// Not blocking, for a client that poll announced may be gone by the time it is accepted.
    fn ready(self) -> std::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
        Ok(self)
    }
}

/// Connections that wait in the kernel until they are accepted: room for a crowd of any size. The
/// kernel caps it at net.core.somaxconn (4096). Beyond it, clients that connect without blocking
/// (libnbd) fail on Unix sockets.
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

/// Replies are written whole, so waiting to fill a segment only adds latency. And a client whose
/// machine died must not hold its place for ever: it is given up after two minutes.
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
