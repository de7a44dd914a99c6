//! Keeps two programs from writing one image.
//!
//! An open-file-description lock on the byte range that QEMU locks too (100 to 299), so that qemu-nbd and a virtual
//! machine are kept off as well; `flock`, which cryptsetup takes for its headers, stays free.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use crate::{Error, ErrorKind};

const FIRST: libc::off_t = 100;
const LEN: libc::off_t = 200;

/// Takes the lock for as long as `file` is open: shared for readers, exclusive for writers.
pub(crate) fn lock(file: &File, name: &str, exclusive: bool) -> Result<(), Error> {
    try_lock(file, exclusive).map_err(|e| refused(name, e))
}

/// Somebody has it; or nobody can have any, because the file system has none (NFS without its lock daemon).
fn refused(name: &str, e: io::Error) -> Error {
    let (kind, what) = match Errno::from_io_error(&e) {
        Some(Errno::AGAIN | Errno::ACCESS) => {
            (ErrorKind::Locked, "is in use by another program (underseal, qemu-nbd, a virtual machine?)")
        }
        _ => (ErrorKind::NoLock, "cannot be locked, and nothing keeps a second writer away"),
    };
    Error::new(kind, format!("{name} {what}")).with_source(e)
}

fn try_lock(file: &File, exclusive: bool) -> io::Result<()> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    #[expect(clippy::cast_possible_truncation, reason = "libc's own constants, one width apart")]
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: FIRST,
        l_len: LEN,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and the structure outlives the call, which only reads it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_not_another_program() {
        let kind = |errno: Errno| refused("image", errno.into()).kind();
        assert_eq!([Errno::AGAIN, Errno::ACCESS].map(kind), [ErrorKind::Locked; 2]);
        assert_eq!([Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP].map(kind), [ErrorKind::NoLock; 3]);
    }
}
