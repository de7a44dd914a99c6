//! Writes to a lower file that another program has begun, and not ended.
//!
//! Linux sets a file's times first, and copies the bytes then, under the inode's lock: a reader
//! that has seen the new times may see the old bytes, and nothing says that there are new ones. No
//! thread waits for the lock here, since a writer can hold it for as long as he likes: his bytes
//! may lie in a file of a mount of his own, which gives no page. A direct write (`O_DIRECT`) over
//! bytes that the file has shares the lock with readers.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, Stat, openat, statfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};

/// File systems in which a direct read takes the inode's lock, or fails if it must not wait: ext4
/// and XFS, by the numbers of `statfs(2)`.
const LOCK_FOR_DIRECT_READS: [u32; 2] = [0xef53, 0x5846_5342];

/// How long a write may take, in seconds: one of an older file is not looked for.
const LONGEST_WRITE: i64 = 60;

/// An offset behind the end of all files, nearly: no byte is read.
const BEHIND: u64 = 1 << 40;

/// Whether a write may change bytes that are read after a look at a file's attributes, without a
/// further change of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BegunWrite {
    No,
    /// A write is under way.
    Yes,
    /// The file changed a moment ago, and at most a direct write over its bytes is under way.
    OnlyDirect,
    /// The file changed a moment ago, and its file system does not say.
    Unknown,
}

/// Looks for a write that had begun before this look at the attributes of the file at `path`.
pub(crate) fn begun_write(path: &str, look: &Stat) -> BegunWrite {
    let age = clock_gettime(ClockId::RealtimeCoarse).tv_sec.checked_sub(look.st_ctime);
    if age.is_some_and(|age| age > LONGEST_WRITE) {
        return BegunWrite::No;
    }
    match open_to_look(path).map(read_behind) {
        Some(Ok(_)) => BegunWrite::OnlyDirect,
        Some(Err(Errno::AGAIN)) => BegunWrite::Yes,
        Some(Err(_)) | None => BegunWrite::Unknown,
    }
}

/// Opens a file for a direct read, where that read says whether a write is under way.
fn open_to_look(path: &str) -> Option<OwnedFd> {
    let kind = u32::try_from(statfs(path).ok()?.f_type).ok()?;
    if !LOCK_FOR_DIRECT_READS.contains(&kind) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let open = |flags| openat(CWD, path, flags, Mode::empty());
    // Only its owner may read a file without a trace.
    open(flags | OFlags::NOATIME).or_else(|_| open(flags)).ok()
}

fn read_behind(file: OwnedFd) -> Result<usize, Errno> {
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let mut block = Block([0; 4096]);
    preadv2(&file, &mut [IoSliceMut::new(&mut block.0)], BEHIND, ReadWriteFlags::NOWAIT)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::{Duration, SystemTime};

    use rustix::fs::{fstat, fstatfs};

    use super::*;

    #[test]
    fn a_file_without_writers_has_no_begun_write() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut look = fstat(&file).unwrap();
        let kind = u32::try_from(fstatfs(&file).unwrap().f_type).unwrap();
        let says = LOCK_FOR_DIRECT_READS.contains(&kind);
        let expected = if says { BegunWrite::OnlyDirect } else { BegunWrite::Unknown };
        assert_eq!(begun_write(&path, &look), expected);
        // The times that a program can set do not matter.
        file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
        look.st_mtime -= 1000;
        assert_eq!(begun_write(&path, &look), expected);
        look.st_ctime -= 1000;
        assert_eq!(begun_write("/nowhere", &look), BegunWrite::No);
    }
}
