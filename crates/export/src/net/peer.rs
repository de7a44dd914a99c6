//! The peer of a connection, for the log.

use std::{fmt, net::SocketAddr};

use rustix::net::{AddressFamily, sockopt};

use super::Socket;

/// The peer of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process on this machine.
    Unix {
        /// The PID at the time of the connection.
        pid: i32,
        /// The user at the time of the connection.
        uid: u32,
    },
    /// An address.
    Tcp(SocketAddr),
    /// The kernel does not report the peer.
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
