//! Write-back errors of a file, also those that another open file was told of.
//!
//! Linux keeps the last error of writing a file back, and each open file keeps which one it was
//! told of (`errseq_t`). A file that is opened **later** is told only of an error that no open file
//! was told of before. So an fsync by any program on the machine (`cryptsetup config`, a backup,
//! this program's own header updates) hides the error from every channel that is made afterwards.
//! The file that [`FileDevice`](super::FileDevice) opened first does not miss any: it was there
//! before the first write. Only [`Shared::note_write_back_errors`] asks it, once for each flush
//! that succeeded.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;

use rustix::fs::{fdatasync, fstatfs};
use rustix::io::Errno;

use super::{File, Shared};

/// Beyond every file: no page lies there, so that nothing is waited for.
const NOWHERE: libc::off64_t = i64::MAX - 1;

impl Shared {
    /// Makes every flush fail from now on if the kernel could not write something back since the
    /// device was opened, whichever program was told of it.
    ///
    /// It costs a system call that neither writes nor waits; and one that reads, where something is
    /// [expected](super::expected).
    /// `EIO` where the flush that has succeeded must fail all the same.
    pub(super) fn note_write_back_errors(&self) -> Result<(), Errno> {
        // The kernel tells it once: the thread that comes second must find it noted.
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = if self.is_stacked { Err(Errno::NOSYS) } else { ask(&self.file) };
        let asked = match asked {
            Err(Errno::NOSYS | Errno::PERM | Errno::SPIPE | Errno::INVAL) => fdatasync(&self.file),
            asked => asked,
        };
        asked.unwrap_or_else(|e| self.losses.fail(e));
        self.miss_expected()
    }
}

/// The write-back error that this open file was not told of yet.
fn ask(file: &File) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and no memory is passed.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if result == 0 { Ok(()) } else { Err(errno(&io::Error::last_os_error())) }
}

/// The error number of a system call that failed.
pub(super) fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// True where the file's pages, and with them its write-back errors, are those of a file of another
/// filesystem (overlayfs).
pub(super) fn is_stacked(file: &File) -> bool {
    const OVERLAYFS: i64 = 0x794c_7630;
    #[allow(clippy::unnecessary_cast, reason = "f_type's width differs between architectures")]
    fstatfs(file).is_ok_and(|s| s.f_type as i64 == OVERLAYFS)
}
