//! The kernel's requests as bytes (linux/fuse.h, protocol 7.31 and later): numbers in the machine's own order.

use rustix::io::Errno;

/// The header of a request.
const HEADER: usize = 40;
/// Where the bytes to write begin in a WRITE: after its header and its arguments.
pub(super) const WRITE_DATA: usize = HEADER + 40;

/// What is asked for.
pub(super) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Which attributes a SETATTR sets.
pub(super) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// An OPEN or CREATE that cuts the file: its set-user-id and set-group-id bits go.
pub(super) const OPEN_KILL_SUIDGID: u32 = 1;
/// The same of a WRITE.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// The same of a SETXATTR: the set-group-id bit.
pub(super) const ACL_KILL_SGID: u32 = 1;
/// FSYNC: the contents alone.
pub(super) const FSYNC_DATA: u32 = 1;

/// Who asks for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The thread that waits; 0 for one of another PID namespace.
    pub(super) pid: u32,
}

/// Takes a request apart: the header, and where its arguments begin.
///
/// # Errors
/// `EIO` when it is shorter than it says.
pub(super) fn header(bytes: &[u8]) -> Result<(Header, Args<'_>), Errno> {
    let mut args = Args(bytes);
    let len = args.u32()?;
    let header = Header {
        opcode: args.u32()?,
        unique: args.u64()?,
        node: args.u64()?,
        uid: args.u32()?,
        gid: args.u32()?,
        pid: args.u32()?,
    };
    // What no request of ours has: extensions.
    args.skip(4)?;
    if len as usize != bytes.len() {
        return Err(Errno::IO);
    }
    Ok((header, args))
}

/// The arguments of a request, taken one after the other.
pub(super) struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<(), Errno> {
        self.take(len).map(drop)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// A name, or a symlink's target: up to its NUL.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Errno> {
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
        let (header, mut args) = header(&bytes).unwrap();
        assert_eq!((header.opcode, header.unique, header.node), (op::LOOKUP, 7, 1));
        assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
        assert_eq!(args.name().unwrap(), b"file");
        assert_eq!(args.u32().unwrap_err(), Errno::IO, "nothing is left");
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let bytes = lookup(b"file\0");
        for len in 0..bytes.len() {
            assert_eq!(header(&bytes[..len]).map(drop), Err(Errno::IO), "{len}");
        }
        let bytes = lookup(b"no end");
        assert_eq!(header(&bytes).unwrap().1.name(), Err(Errno::IO));
    }
}
