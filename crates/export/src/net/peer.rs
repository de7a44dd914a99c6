//! Who is at the other end, for the log.

use std::{fmt, net::SocketAddr};

use rustix::net::{AddressFamily, sockopt};

use super::Socket;

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process on this machine.
    Unix {
        /// Its process when it connected.
        pid: i32,
        /// Its user when it connected.
        uid: u32,
    },
    /// An address.
    Tcp(SocketAddr),
    /// The kernel does not say.
    Unknown,
}

impl Peer {
    pub(crate) fn of(socket: &Socket) -> Self {
        let address = || SocketAddr::try_from(rustix::net::getpeername(socket).ok().flatten()?).ok();
        if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
            sockopt::socket_peercred(socket).map_or(Self::Unknown, |cred| Self::Unix {
                pid: cred.pid.as_raw_pid(),
                uid: cred.uid.as_raw(),
            })
        } else {
            address().map_or(Self::Unknown, Self::Tcp)
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unknown => f.write_str("unknown client"),
        }
    }
}
