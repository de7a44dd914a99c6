//! Keeps two programs from writing one image.
//!
//! An open-file-description lock on the byte range that QEMU locks too (100 to 299), so that qemu-nbd and a virtual
//! machine are kept off as well; `flock`, which cryptsetup takes for its headers, stays free.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const FIRST: libc::off_t = 100;
const LEN: libc::off_t = 200;

/// Takes the lock for as long as `file` is open: shared for readers, exclusive for writers.
pub(crate) fn lock(file: &File, exclusive: bool) -> io::Result<()> {
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
