//! Write-back errors of a file, also those that another open file has reported.
//!
//! Linux keeps the last write-back error of a file, and each open file remembers which one it has
//! reported (`errseq_t`). A file that is opened **later** reports only an error that no open file
//! has reported before. So an fsync by any program on the machine (`cryptsetup config`, a backup,
//! this program's header updates) hides the error from every later channel. The file that
//! [`FileDevice`](super::FileDevice) opened first does not miss any: it was open before the first
//! write. Only [`Shared::note_write_back_errors`] asks it, once for each successful flush.

#![expect(unsafe_code, reason = "sync_file_range(2), which rustix does not have")]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;

use rustix::fs::{fdatasync, fstatfs};
use rustix::io::Errno;

use super::below::FileBelow;
use super::{File, Shared};

/// An offset beyond every file: no page lies there, so the call waits for nothing.
const NOWHERE: libc::off64_t = i64::MAX - 1;

impl Shared {
    /// Makes every flush fail from now on if the kernel failed to write back any data since the
    /// device was opened, whichever program got that error.
    ///
    /// The cost is a system call that neither writes nor waits; one for the size; and one that
    /// reads, where bytes are [expected](super::expected). Returns `EIO` where the successful flush
    /// must fail nevertheless.
    pub(super) fn note_write_back_errors(&self) -> Result<(), Errno> {
        // The kernel reports an error once: the thread that comes second must find it noted.
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = ask(&self.file, self.is_stacked)
            .and_then(|()| self.below.as_ref().map_or(Ok(()), FileBelow::ask));
        asked.unwrap_or_else(|e| self.losses.fail(e));
        self.is_whole()
    }
}

/// The write-back error that this open file has not reported yet.
pub(super) fn ask(file: &File, is_stacked: bool) -> Result<(), Errno> {
    let asked = if is_stacked { Err(Errno::NOSYS) } else { ask_pages(file) };
    match asked {
        Err(Errno::NOSYS | Errno::PERM | Errno::SPIPE | Errno::INVAL) => fdatasync(file),
        asked => asked,
    }
}

fn ask_pages(file: &File) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and no memory is passed.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if result == 0 { Ok(()) } else { Err(errno(&io::Error::last_os_error())) }
}

/// The error number of a failed system call.
pub(super) fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// True where another file, of another filesystem or of a FUSE server, has the write-back errors.
pub(super) fn is_stacked(file: &File) -> bool {
    const OVERLAYFS: i64 = 0x794c_7630;
    const FUSE: i64 = 0x6573_5546;
    #[allow(clippy::unnecessary_cast, reason = "f_type's width differs between architectures")]
    fstatfs(file).is_ok_and(|s| [OVERLAYFS, FUSE].contains(&(s.f_type as i64)))
}
