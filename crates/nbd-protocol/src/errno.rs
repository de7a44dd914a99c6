//! The error values for clients (proto.md, "Error values"), and the conversion from the server's
//! errors.

use std::io;

/// An error for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// Reading or writing the lower device failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// The request is malformed here: flags, range, alignment, command.
    Inval = 22,
    /// No space, or a write beyond the end.
    NoSpc = 28,
    /// The request is too long for an answer in one piece.
    Overflow = 75,
    /// Not supported, or not fast.
    NotSup = 95,
    /// The server is stopping.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }
}

impl From<&io::Error> for Errno {
    /// EDQUOT and EFBIG become a lack of space, as proto.md wants; an unnamed errno becomes an I/O
    /// error.
    fn from(error: &io::Error) -> Self {
        use rustix::io::Errno as Os;
        match rustix::io::Errno::from_io_error(error) {
            Some(Os::PERM | Os::ACCESS | Os::ROFS) => Self::Perm,
            Some(Os::NOMEM) => Self::NoMem,
            Some(Os::INVAL) => Self::Inval,
            Some(Os::NOSPC | Os::DQUOT | Os::FBIG) => Self::NoSpc,
            Some(Os::OVERFLOW) => Self::Overflow,
            Some(Os::OPNOTSUPP | Os::NOSYS) => Self::NotSup,
            Some(Os::SHUTDOWN) => Self::Shutdown,
            Some(_) => Self::Io,
            None => Self::from(error.kind()),
        }
    }
}

impl From<io::ErrorKind> for Errno {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Perm,
            io::ErrorKind::OutOfMemory => Self::NoMem,
            io::ErrorKind::InvalidInput => Self::Inval,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoSpc
            }
            io::ErrorKind::Unsupported => Self::NotSup,
            _ => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_maps_to_what_the_protocol_names() {
        let os = |errno: rustix::io::Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        use rustix::io::Errno as Os;
        let table = [
            (os(Os::PERM), 1),
            (os(Os::ROFS), 1),
            (os(Os::IO), 5),
            (os(Os::NODEV), 5),
            (os(Os::NOMEM), 12),
            (os(Os::INVAL), 22),
            (os(Os::NOSPC), 28),
            (os(Os::DQUOT), 28),
            (os(Os::FBIG), 28),
            (os(Os::OVERFLOW), 75),
            (os(Os::OPNOTSUPP), 95),
            (os(Os::SHUTDOWN), 108),
            (io::ErrorKind::UnexpectedEof.into(), 5),
            (io::ErrorKind::StorageFull.into(), 28),
            (io::Error::other("no number at all"), 5),
        ];
        for (error, number) in table {
            assert_eq!(Errno::from(&error).number(), number, "{error}");
        }
    }
}
