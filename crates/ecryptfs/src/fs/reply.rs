//! Replies as bytes (linux/fuse.h).

use std::time::Duration;

use rustix::fs::{FileType, Stat, StatVfs};

/// What precedes every reply.
pub(super) const HEADER: usize = 16;
/// An entry of a folder that also says what LOOKUP would, before its name.
const ENTRY: usize = 128;
const DIRENT: usize = 24;

/// How long the kernel may answer from memory. Changes through the mount are seen at once; those underneath it, after
/// this time.
const VALID: Duration = Duration::from_secs(1);

/// Bytes that grow at their end.
pub(super) struct Body<'a>(pub(super) &'a mut Vec<u8>);

impl Body<'_> {
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// What a GETATTR or SETATTR is answered with.
    pub(super) fn attributes(&mut self, stat: &Stat) -> &mut Self {
        self.u64(VALID.as_secs()).u32(VALID.subsec_nanos()).u32(0).attr(stat)
    }

    /// What a LOOKUP is answered with. Node 0 is none: the name is there, but nothing is said of it.
    pub(super) fn entry(&mut self, node: u64, stat: &Stat) -> &mut Self {
        self.u64(node).u64(0).u64(VALID.as_secs()).u64(VALID.as_secs());
        self.u32(VALID.subsec_nanos()).u32(VALID.subsec_nanos()).attr(stat)
    }

    /// That there is no such name, to be remembered.
    pub(super) fn no_entry(&mut self) -> &mut Self {
        self.u64(0).u64(0).u64(VALID.as_secs()).u64(0);
        self.u32(VALID.subsec_nanos()).u32(0).zeros(ENTRY - 40)
    }

    pub(super) fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }

    pub(super) fn zeros(&mut self, len: usize) -> &mut Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    #[expect(clippy::cast_sign_loss, reason = "times before 1970 are two's complement there too")]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "nanoseconds are below a billion; a block is a few KiB"
    )]
    fn attr(&mut self, stat: &Stat) -> &mut Self {
        self.u64(stat.st_ino).u64(stat.st_size as u64).u64(stat.st_blocks as u64);
        self.u64(stat.st_atime as u64).u64(stat.st_mtime as u64).u64(stat.st_ctime as u64);
        self.u32(stat.st_atime_nsec as u32).u32(stat.st_mtime_nsec as u32).u32(stat.st_ctime_nsec as u32);
        self.u32(stat.st_mode).u32(u32::try_from(stat.st_nlink).unwrap_or(u32::MAX));
        self.u32(stat.st_uid).u32(stat.st_gid).u32(device(stat.st_rdev)).u32(4096).u32(0)
    }

    /// What a STATFS is answered with.
    #[expect(clippy::cast_possible_truncation, reason = "a block is smaller than 4 GiB")]
    pub(super) fn statfs(&mut self, stat: &StatVfs, name_limit: u64) -> &mut Self {
        self.u64(stat.f_blocks).u64(stat.f_bfree).u64(stat.f_bavail).u64(stat.f_files).u64(stat.f_ffree);
        self.u32(stat.f_bsize as u32).u32(name_limit as u32).u32(stat.f_frsize as u32).u32(0).zeros(24)
    }

    /// An entry of a folder.
    #[expect(clippy::cast_possible_truncation, reason = "a name has at most 255 bytes")]
    pub(super) fn dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> &mut Self {
        self.u64(ino).u64(next).u32(name.len() as u32).u32(kind);
        self.0.extend_from_slice(name);
        self.zeros(name.len().next_multiple_of(8) - name.len())
    }
}

/// How much room an entry of a folder takes.
pub(super) fn dirent_len(name: &[u8], plus: bool) -> usize {
    DIRENT + name.len().next_multiple_of(8) + if plus { ENTRY } else { 0 }
}

/// The type as folders have it: the four bits of the mode.
pub(super) fn dirent_type(kind: FileType) -> u32 {
    kind.as_raw_mode() >> 12
}

/// A device's number as the protocol has it: 32 bits.
fn device(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The way back.
pub(super) fn device_of(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// The header of a reply.
#[expect(clippy::cast_possible_truncation, reason = "a reply is at most 1 MiB and a little")]
pub(super) fn header(unique: u64, error: i32, len: usize) -> [u8; HEADER] {
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
            assert_eq!(device_of(device(rdev)), rdev, "{major}:{minor}");
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
}
