//! A lock that keeps two programs from writing one image.
//!
//! The lock is an open-file-description lock on the byte range that QEMU locks too (100 to 299), so
//! that it also excludes qemu-nbd and virtual machines; `flock`, which cryptsetup takes for its
//! headers, stays free.
//!
//! Two partitions of one loop device are two images in one file. Who uses a part of a file shares
//! that lock, and locks the part's place in a range behind every file's end, which the users of
//! whole files lock, too.

#![expect(unsafe_code, reason = "locks of open files, which rustix does not have")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Error, ErrorKind};

const FIRST: libc::off_t = 100;
const LEN: libc::off_t = 200;
/// Where the range begins that stands for a file's bytes. It has no end.
const PARTS: libc::off_t = 1 << 62;

/// The time for which a held lock is tried again: a program that ends, or starts another one, holds
/// its files for a moment after it closed them.
const MOMENT: Duration = Duration::from_millis(100);

/// Locks an image for as long as `file` is open: shared for readers, exclusive for writers.
/// [`FileDevice`](crate::FileDevice) calls this itself.
///
/// # Errors
/// `Locked` when another program has the lock; `Open` when the file is open for reading only, and
/// the lock is exclusive; `NoLock` when the filesystem has no locks.
pub fn lock(file: &File, name: &str, exclusive: bool) -> Result<(), Error> {
    let take =
        || try_lock(file, (FIRST, LEN), exclusive).and_then(|()| lock_parts(file, (PARTS, 0), exclusive));
    for_a_moment(take).map_err(|e| refused(name, e))
}

/// Opens the file of a detached header once more, and locks it as the image of a reader, with the
/// file below it where it is a loop device, for as long as the results are open: no program makes
/// another volume of the header meanwhile. Returns no files where there can be no locks.
///
/// # Errors
/// `Locked` when another program has the file as its own image, which it writes.
pub fn lock_header(file: &File) -> Result<Vec<File>, Error> {
    let mut locked: Vec<File> = crate::lock_loop_file(file, false)?.into_iter().collect();
    if let Ok(again) = crate::open_again(file, 0) {
        match lock(&again, "the file of the detached header", false) {
            Err(e) if e.kind() == ErrorKind::Locked => return Err(e),
            Err(_) => {}
            Ok(()) => locked.push(again),
        }
    }
    Ok(locked)
}

/// As [`lock`], of an image that is a part of a file: users of other parts are not kept away. Fails
/// as `lock` does.
pub(crate) fn lock_image_part(
    file: &File,
    name: &str,
    exclusive: bool,
    part: &Range<u64>,
) -> Result<(), Error> {
    let at = libc::off_t::try_from(part.start).ok().and_then(|start| PARTS.checked_add(start));
    let len = libc::off_t::try_from(part.end.saturating_sub(part.start)).ok();
    let (Some(at), Some(len @ 1..)) = (at, len) else { return lock(file, name, exclusive) };
    let take = || try_lock(file, (FIRST, LEN), false).and_then(|()| lock_parts(file, (at, len), exclusive));
    for_a_moment(take).map_err(|e| refused(name, e))
}

/// Locks places of parts; not where the file system takes no such range.
fn lock_parts(file: &File, range: (libc::off_t, libc::off_t), exclusive: bool) -> io::Result<()> {
    try_lock(file, range, exclusive).or_else(|e| if is_taken(&e) { Err(e) } else { Ok(()) })
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

/// The error of a failed lock: another program has it, the file is open for reading only and is to
/// be locked for writing, or the filesystem has no locks (NFS without its lock daemon).
fn refused(name: &str, e: io::Error) -> Error {
    let (kind, what) = match Errno::from_io_error(&e) {
        Some(Errno::AGAIN | Errno::ACCESS) => {
            (ErrorKind::Locked, "is in use by another program (underseal, qemu-nbd, a virtual machine?)")
        }
        Some(Errno::BADF) => (ErrorKind::Open, "is not open for writing"),
        _ => (ErrorKind::NoLock, "cannot be locked, and nothing keeps a second writer away"),
    };
    Error::new(kind, format!("{name} {what}")).with_source(e)
}

/// Locks bytes from the first number on, as many as the second one says, 0 for all.
fn try_lock(file: &File, (start, len): (libc::off_t, libc::off_t), exclusive: bool) -> io::Result<()> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    #[expect(clippy::cast_possible_truncation, reason = "libc's own constants, one width apart")]
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
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
    fn parts_of_a_file_have_users_of_their_own() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let part = |exclusive, part: Range<u64>| {
            let file = open();
            lock_image_part(&file, "part", exclusive, &part).map(|()| file).map_err(|e| e.kind())
        };
        let users = [part(true, 0..4096).unwrap(), part(true, 4096..8192).unwrap()];
        for (exclusive, range) in [(true, 0..4096), (false, 4095..5000), (true, 8191..9000)] {
            assert_eq!(part(exclusive, range).map(drop), Err(ErrorKind::Locked));
        }
        part(false, 8192..9000).unwrap();
        for exclusive in [false, true] {
            assert_eq!(lock(&open(), "whole", exclusive).unwrap_err().kind(), ErrorKind::Locked);
        }
        drop(users);
        let whole = open();
        lock(&whole, "whole", false).unwrap();
        part(false, 0..4096).unwrap();
        assert_eq!(part(true, 0..4096).map(drop), Err(ErrorKind::Locked));
        lock(&whole, "whole", true).unwrap();
        assert_eq!(part(false, 0..4096).map(drop), Err(ErrorKind::Locked));
    }

    #[test]
    fn a_file_that_is_open_for_reading_only_is_not_locked_for_writing() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(path.path()).unwrap();
        let error = lock(&file, "image", true).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::Open, "image is not open for writing".into())
        );
        lock(&file, "image", false).unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_not_another_program() {
        let kind = |errno: Errno| refused("image", errno.into()).kind();
        assert_eq!([Errno::AGAIN, Errno::ACCESS].map(kind), [ErrorKind::Locked; 2]);
        assert_eq!([Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP].map(kind), [ErrorKind::NoLock; 3]);
    }
}
