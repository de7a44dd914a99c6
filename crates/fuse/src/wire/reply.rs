//! Replies as bytes (linux/fuse.h).

use std::time::Duration;

use rustix::fs::{FileType, Stat, StatVfs};

/// The length of a reply's header.
const HEADER: usize = 16;
/// The length of LOOKUP's answer, which READDIRPLUS puts before each name.
const ENTRY: usize = 128;
const DIRENT: usize = 24;

/// The time for which Linux may answer from its cache. Changes through the mount are visible at
/// once; changes underneath the mount, after this time.
pub const VALID: Duration = Duration::from_secs(1);

/// A file's attributes.
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "as stat(2) has them; times are seconds since 1970 and nanoseconds")]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    /// Blocks of 512 bytes, for any block size.
    pub blocks: u64,
    pub atime: (u64, u32),
    pub mtime: (u64, u32),
    pub ctime: (u64, u32),
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub block: u32,
}

impl From<&Stat> for Attr {
    #[expect(clippy::cast_sign_loss, reason = "times before 1970 are two's complement there too")]
    #[expect(clippy::cast_possible_truncation, reason = "nanoseconds are below a billion")]
    fn from(stat: &Stat) -> Self {
        Self {
            ino: stat.st_ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            atime: (stat.st_atime as u64, stat.st_atime_nsec as u32),
            mtime: (stat.st_mtime as u64, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime as u64, stat.st_ctime_nsec as u32),
            mode: stat.st_mode,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            block: 4096,
        }
    }
}

/// A reply without its header: bytes that grow at their end.
#[derive(Debug)]
pub struct Body<'a>(pub &'a mut Vec<u8>);

impl Body<'_> {
    /// Appends a number.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// The answer to a GETATTR or SETATTR, from which Linux may answer for the time `valid`.
    pub fn attributes(&mut self, attr: &Attr, valid: Duration) -> &mut Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attr(attr)
    }

    /// The answer to a LOOKUP. Node 0 means no node: the name exists, but its attributes are not
    /// given.
    pub fn entry(&mut self, node: u64, attr: &Attr) -> &mut Self {
        self.u64(node).u64(0).u64(VALID.as_secs()).u64(VALID.as_secs());
        self.u32(VALID.subsec_nanos()).u32(VALID.subsec_nanos()).attr(attr)
    }

    /// A cacheable answer that the name does not exist.
    pub fn no_entry(&mut self) -> &mut Self {
        self.u64(0).u64(0).u64(VALID.as_secs()).u64(0);
        self.u32(VALID.subsec_nanos()).u32(0).zeros(ENTRY - 40)
    }

    /// The answer to an OPEN: flags of [`open_flag`](super::open_flag).
    pub fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }

    /// The answer to a WRITE.
    pub fn written(&mut self, len: u32) -> &mut Self {
        self.u32(len).u32(0)
    }

    /// Appends `len` zeros.
    pub fn zeros(&mut self, len: usize) -> &mut Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    fn attr(&mut self, attr: &Attr) -> &mut Self {
        let Attr { atime, mtime, ctime, .. } = attr;
        self.u64(attr.ino).u64(attr.size).u64(attr.blocks).u64(atime.0).u64(mtime.0).u64(ctime.0);
        self.u32(atime.1).u32(mtime.1).u32(ctime.1).u32(attr.mode).u32(attr.nlink);
        self.u32(attr.uid).u32(attr.gid).u32(device_to_wire(attr.rdev)).u32(attr.block).u32(0)
    }

    /// The answer to a STATFS.
    #[expect(clippy::cast_possible_truncation, reason = "a block is smaller than 4 GiB")]
    pub fn statfs(&mut self, stat: &StatVfs, name_limit: u64) -> &mut Self {
        self.u64(stat.f_blocks).u64(stat.f_bfree).u64(stat.f_bavail).u64(stat.f_files).u64(stat.f_ffree);
        self.u32(stat.f_bsize as u32).u32(name_limit as u32).u32(stat.f_frsize as u32).u32(0).zeros(24)
    }

    /// Appends an entry of a folder.
    #[expect(clippy::cast_possible_truncation, reason = "a name has at most 255 bytes")]
    pub fn dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> &mut Self {
        self.u64(ino).u64(next).u32(name.len() as u32).u32(kind);
        self.0.extend_from_slice(name);
        self.zeros(name.len().next_multiple_of(8) - name.len())
    }
}

/// Returns the length of a folder's entry.
pub fn dirent_len(name: &[u8], plus: bool) -> usize {
    DIRENT + name.len().next_multiple_of(8) + if plus { ENTRY } else { 0 }
}

/// Returns the type in the form of folders: the four bits of the mode.
pub fn dirent_type(kind: FileType) -> u32 {
    kind.as_raw_mode() >> 12
}

/// Returns a device's number in the protocol's form: 32 bits.
pub fn device_to_wire(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Returns the device's number from the protocol's form.
pub fn device_from_wire(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// The header of a reply with a body of `len` bytes.
#[expect(clippy::cast_possible_truncation, reason = "a reply is at most 1 MiB and a little")]
pub fn reply_header(unique: u64, error: i32, len: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&((HEADER + len) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_number_survives_the_way_there_and_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 300), (0xfff, 0xf_ffff)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(device_from_wire(device_to_wire(rdev)), rdev, "{major}:{minor}");
        }
    }

    #[test]
    fn an_entry_is_as_long_as_was_reckoned() {
        let mut bytes = Vec::new();
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            bytes.clear();
            Body(&mut bytes).dirent(1, 2, 8, name);
            assert_eq!(bytes.len(), dirent_len(name, false));
        }
        bytes.clear();
        Body(&mut bytes).no_entry();
        assert_eq!(bytes.len(), ENTRY);
    }

    #[test]
    fn replies_have_the_kernels_lengths() {
        fn len(fill: impl FnOnce(&mut Body<'_>)) -> usize {
            let mut bytes = Vec::new();
            fill(&mut Body(&mut bytes));
            bytes.len()
        }
        let attr = Attr::default();
        assert_eq!(len(|body| _ = body.attributes(&attr, VALID)), 104);
        assert_eq!(len(|body| _ = body.entry(7, &attr)), 128);
        assert_eq!(len(|body| _ = body.opened(1, 2)), 16);
        assert_eq!(len(|body| _ = body.written(1)), 8);
        let stat = rustix::fs::statvfs("/").unwrap();
        assert_eq!(len(|body| _ = body.statfs(&stat, 255)), 80);
    }
}
