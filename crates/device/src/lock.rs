//! A lock that keeps two programs from writing one image.
//!
//! The lock is an open-file-description lock on the byte range that QEMU locks too (100 to 299), so
//! that it also excludes qemu-nbd and virtual machines; `flock`, which cryptsetup takes for its
//! headers, stays free.

#![expect(unsafe_code, reason = "locks of open files, which rustix does not have")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Error, ErrorKind};

const FIRST: libc::off_t = 100;
const LEN: libc::off_t = 200;

/// The time for which a held lock is tried again: a program that ends, or starts another one, holds
/// its files for a moment after it closed them.
const MOMENT: Duration = Duration::from_millis(100);

/// Locks an image for as long as `file` is open: shared for readers, exclusive for writers.
/// [`FileDevice`](crate::FileDevice) calls this itself.
///
/// # Errors
/// `Locked` when another program has the lock; `NoLock` when the filesystem has no locks.
pub fn lock(file: &File, name: &str, exclusive: bool) -> Result<(), Error> {
    for_a_moment(|| try_lock(file, exclusive)).map_err(|e| refused(name, e))
}

/// Repeats `take` for a moment while another program has the lock.
pub(crate) fn for_a_moment<T>(mut take: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    loop {
        match take() {
            Err(e) if is_taken(&e) && started.elapsed() < MOMENT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

fn is_taken(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::AGAIN | Errno::BUSY))
}

/// The error of a failed lock: another program has it, or the filesystem has no locks (NFS without
/// its lock daemon).
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
    fn what_is_let_go_in_a_moment_is_taken_and_what_is_not_is_refused() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let (first, second) = (open(), open());
        lock(&first, "image", true).unwrap();
        assert_eq!(lock(&second, "image", false).unwrap_err().kind(), ErrorKind::Locked);
        let closing = std::thread::spawn(move || {
            std::thread::sleep(MOMENT / 10);
            drop(first);
        });
        lock(&second, "image", true).unwrap();
        closing.join().unwrap();
        lock(&open(), "image", true).unwrap_err();
    }

    #[test]
    fn a_file_system_without_locks_is_not_another_program() {
        let kind = |errno: Errno| refused("image", errno.into()).kind();
        assert_eq!([Errno::AGAIN, Errno::ACCESS].map(kind), [ErrorKind::Locked; 2]);
        assert_eq!([Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP].map(kind), [ErrorKind::NoLock; 3]);
    }
}
