//! Requests and replies as bytes (linux/fuse.h, protocol 7.31 and later): numbers in the machine's
//! own order.

mod reply;

use rustix::io::Errno;

pub use reply::{Attr, Body, VALID, dirent_len, dirent_type, reply_header};
pub use reply::{device_from_wire, device_to_wire};

/// The bytes of a request's header.
pub const HEADER: usize = 40;
/// The offset of the data in a WRITE: after its header and its arguments.
pub const WRITE_DATA: usize = HEADER + 40;

/// Opcodes of requests (`FUSE_..`).
pub mod op {
    #![expect(missing_docs, reason = "as linux/fuse.h names them")]

    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
}

/// The attributes that a SETATTR sets (`FATTR_..`).
pub mod set {
    #![expect(missing_docs, reason = "as linux/fuse.h names them")]

    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Codes of notifications to Linux (`FUSE_NOTIFY_..`).
pub mod notify {
    #![expect(missing_docs, reason = "as linux/fuse.h names them")]

    pub const INVAL_INODE: i32 = 2;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RETRIEVE: i32 = 5;
}

/// In an OPEN or CREATE that cuts the file: its set-user-id and set-group-id bits are removed.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// In a WRITE: the kernel writes pages back, such as those that a process has mapped. It takes any
/// answer but an error for all of them, and no caller sees the number of bytes.
pub const WRITE_CACHE: u32 = 1;
/// In a WRITE: its set-user-id and set-group-id bits are removed.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In a SETXATTR: the set-group-id bit is removed.
pub const ACL_KILL_SGID: u32 = 1;
/// In an FSYNC: only the contents are synced.
pub const FSYNC_DATA: u32 = 1;

/// How a file's data is cached by the kernel (`FOPEN_..` of a reply).
pub mod open_flag {
    /// Bypasses the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// The cached pages of the file stay valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Direct writes may run in parallel.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// Closing a descriptor needs no FLUSH.
    pub const NO_FLUSH: u32 = 1 << 5;
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InHeader {
    /// An opcode of [`op`].
    pub opcode: u32,
    /// The request's number, for the reply.
    pub unique: u64,
    /// The node of the file that the request is about.
    pub node: u64,
    /// The user of the caller.
    pub uid: u32,
    /// The group of the caller.
    pub gid: u32,
    /// The waiting thread; 0 for a thread of another PID namespace.
    pub pid: u32,
}

impl InHeader {
    /// Splits a request into the header and the arguments.
    ///
    /// # Errors
    /// `EIO` when it is shorter than its own length.
    pub fn read(bytes: &[u8]) -> Result<(Self, RequestArgs<'_>), Errno> {
        Self::read_first(bytes, bytes.len())
    }

    /// The same for a request of `len` bytes, whose first bytes are available.
    ///
    /// # Errors
    /// `EIO` when it is shorter than its own length.
    pub fn read_first(bytes: &[u8], len: usize) -> Result<(Self, RequestArgs<'_>), Errno> {
        let mut args = RequestArgs(&bytes[..len.min(bytes.len())]);
        let said = args.u32()?;
        let header = Self {
            opcode: args.u32()?,
            unique: args.u64()?,
            node: args.u64()?,
            uid: args.u32()?,
            gid: args.u32()?,
            pid: args.u32()?,
        };
        // Extensions, which no request here has.
        args.skip(4)?;
        if said as usize != len {
            return Err(Errno::IO);
        }
        Ok((header, args))
    }
}

/// The arguments of a request, taken in order.
#[derive(Debug)]
pub struct RequestArgs<'a>(&'a [u8]);

impl<'a> RequestArgs<'a> {
    /// Takes `len` bytes.
    ///
    /// # Errors
    /// `EIO` when fewer bytes are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips `len` bytes.
    ///
    /// # Errors
    /// `EIO` when fewer bytes are left.
    pub fn skip(&mut self, len: usize) -> Result<(), Errno> {
        self.take(len).map(drop)
    }

    /// Returns the next number.
    ///
    /// # Errors
    /// `EIO` when fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    /// Returns the next number.
    ///
    /// # Errors
    /// `EIO` when fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// Returns a name, or a symlink's target: up to its NUL.
    ///
    /// # Errors
    /// `EIO` when it has no end.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Errno::IO)?;
        let name = self.take(end)?;
        self.skip(1)?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u32::try_from(HEADER + name.len()).unwrap().to_ne_bytes());
        bytes.extend(op::LOOKUP.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(1u64.to_ne_bytes());
        bytes.extend([1000u32, 100, 4242, 0].map(u32::to_ne_bytes).concat());
        bytes.extend(name);
        bytes
    }

    #[test]
    fn a_request_is_taken_apart() {
        let bytes = lookup(b"file\0");
        let (header, mut args) = InHeader::read(&bytes).unwrap();
        assert_eq!((header.opcode, header.unique, header.node), (op::LOOKUP, 7, 1));
        assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
        assert_eq!(args.name().unwrap(), b"file");
        assert_eq!(args.u32().unwrap_err(), Errno::IO, "nothing is left");
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let bytes = lookup(b"file\0");
        for len in 0..bytes.len() {
            assert_eq!(InHeader::read(&bytes[..len]).map(drop), Err(Errno::IO), "{len}");
        }
        let bytes = lookup(b"no end");
        assert_eq!(InHeader::read(&bytes).unwrap().1.name(), Err(Errno::IO));
    }
}
