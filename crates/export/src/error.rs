//! The crate's one error: a stable kind, the thing it happened to, and its cause.

use std::io;

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text names no endpoint.
    BadEndpoint,
    /// An export's description breaks a rule of the protocol.
    BadExport,
    /// The text is no name for a volume.
    BadName,
    /// The directory of control sockets cannot be made, or is not the user's own.
    Directory,
    /// Another server listens there.
    InUse,
    /// No open volume listens there.
    NotOpen,
    /// It belongs to another user.
    Forbidden,
    /// A socket could not be bound, listened on or taken over.
    Listen,
    /// The listener would carry plain text over a network, and nobody asked for that.
    Plaintext,
    /// A certificate, key or list of revocations could not be used.
    Certificate,
    /// The client broke the protocol, or asked for what is not served.
    Protocol,
    /// The client did not finish in the time it has.
    Timeout,
    /// Reading from or writing to the client failed.
    Io,
    /// Connections were still at work, or files open, when the time to stop had passed.
    Drain,
    /// There is no FUSE here, or not for this user.
    FuseDevice,
    /// There is no ublk here, or not what is needed of it.
    UblkDevice,
    /// The block device is another server's, or another volume's.
    DeviceInUse,
    /// The kernel refused what was asked of ublk.
    Ublk,
    /// There is nothing at the path that can be mounted on.
    MountPoint,
    /// Something is mounted at the path already.
    Mounted,
    /// The system refused to mount.
    Mount,
    /// Users may not let others, nor root, into their mounts on this system.
    OthersForbidden,
    /// The volume cannot be shown in this way.
    Unsupported,
}

underseal_error::error_type! {
    /// An error of the export layer. Text that came from the network is escaped and shortened in
    /// it.
    pub struct Error(ErrorKind);
}

/// A failed read or write on a connection.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        let (kind, context) = match source.kind() {
            io::ErrorKind::TimedOut => (ErrorKind::Timeout, "the client ran out of time"),
            io::ErrorKind::UnexpectedEof => {
                (ErrorKind::Io, "the client went away in the middle of a message")
            }
            _ => (ErrorKind::Io, "the connection failed"),
        };
        Self::new(kind, context).with_source(source)
    }
}
