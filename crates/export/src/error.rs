//! The crate's error: a stable kind, its context, and its cause.

use std::io;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text names no endpoint.
    BadEndpoint,
    /// An export's description breaks a rule of the protocol.
    BadExport,
    /// The text is not valid as a volume's name.
    BadName,
    /// The directory of control sockets cannot be made, or does not belong to the user.
    Directory,
    /// Another server listens on the address.
    InUse,
    /// No open volume listens on the socket.
    NotOpen,
    /// The socket belongs to another user.
    Forbidden,
    /// A socket could not be bound, listened on, or received from the old server.
    Listen,
    /// The listener would carry plain text over a network, without permission to do so.
    Plaintext,
    /// A certificate, key or list of revocations could not be used.
    Certificate,
    /// The client broke the protocol, or requested an export that does not exist.
    Protocol,
    /// The client exceeded a time limit.
    Timeout,
    /// Reading from or writing to the client failed.
    Io,
    /// When the time to stop had passed, connections were still in use or files still open.
    Drain,
    /// FUSE is missing, or not permitted for this user.
    FuseDevice,
    /// The kernel has no ublk, or lacks a feature of it.
    UblkDevice,
    /// The block device belongs to another server, or to another volume.
    DeviceInUse,
    /// The kernel refused a ublk command.
    Ublk,
    /// The path is not a mount point.
    MountPoint,
    /// Something is mounted at the path already.
    Mounted,
    /// The system refused to mount.
    Mount,
    /// This system does not permit users to give other users, or root, access to their mounts.
    OthersForbidden,
    /// The export does not support this volume.
    Unsupported,
}

underseal_error::error_type! {
    /// An error of the export layer. Text from the network is escaped and shortened.
    pub struct Error(ErrorKind);
}

/// A failed read or write on a connection.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        let (kind, context) = match source.kind() {
            io::ErrorKind::TimedOut => (ErrorKind::Timeout, "the client exceeded a time limit"),
            io::ErrorKind::UnexpectedEof => {
                (ErrorKind::Io, "the client went away in the middle of a message")
            }
            _ => (ErrorKind::Io, "the connection failed"),
        };
        Self::new(kind, context).with_source(source)
    }
}
