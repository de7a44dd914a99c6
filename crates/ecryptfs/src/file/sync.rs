//! fsync: which bytes it makes durable, and which callers get its error.
//!
//! **Sizes.** A data-only sync makes durable all data that is needed to find the file's data again;
//! for a lower filesystem, an xattr is not needed. With the header in an xattr, the first data-only
//! sync after a change of the size is a full sync.
//!
//! **Losses.** The kernel reports a failed write-back once for each open file. All opens here share
//! a single open file, so losses are counted, and each open gets the error at its next fsync.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

use super::{FsError, OpenFile};

/// The durable parts of a lower file besides its data, and its losses.
#[derive(Default)]
pub(super) struct Syncs {
    /// The number of sizes written to the xattr, and how many of them are durable.
    sizes: AtomicU64,
    durable: AtomicU64,
    /// The number of failed write-backs, and the last reason.
    losses: AtomicU64,
    reason: AtomicI32,
    /// Held during a sync and until its failure is counted.
    running: RwLock<()>,
}

impl Syncs {
    /// Records that the size, or the whole header, is in the xattr and may not be durable yet.
    pub(super) fn size_written(&self) {
        self.sizes.fetch_add(1, SeqCst);
    }

    fn run(&self, file: impl AsFd, data_only: bool) -> Result<(), Errno> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        let sizes = self.sizes.load(SeqCst);
        let whole = !data_only || self.durable.load(SeqCst) < sizes;
        let done = if whole { rustix::fs::fsync(file) } else { rustix::fs::fdatasync(file) };
        match done {
            Ok(()) if whole => drop(self.durable.fetch_max(sizes, SeqCst)),
            Ok(()) => {}
            Err(e) => self.lose(e),
        }
        drop(running);
        // A concurrent sync may have received an error that concerns both.
        drop(self.running.write());
        done
    }

    /// Writes a part of the file back, and waits for the disk. Its error may be that of another
    /// part, which no fsync would get any more: it is counted, and the part is written once more.
    ///
    /// Fails with the second error.
    pub(super) fn write_back(&self, write: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        let _running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        let lost = |e: &Errno| self.lose(*e);
        write().inspect_err(lost).or_else(|_| write().inspect_err(lost))
    }

    fn lose(&self, e: Errno) {
        self.reason.store(e.raw_os_error(), SeqCst);
        self.losses.fetch_add(1, SeqCst);
    }
}

/// An open of a file.
pub(crate) struct Opener {
    file: Arc<OpenFile>,
    /// Whether it was counted as one for writing.
    writes: bool,
    /// The number of losses already reported to this open, or older than it.
    told: AtomicU64,
}

impl Opener {
    /// An open for reading, or one for writing that the file has counted.
    pub(crate) fn new(file: Arc<OpenFile>, writes: bool) -> Self {
        let told = file.syncs().losses.load(SeqCst).into();
        Self { file, writes, told }
    }

    pub(crate) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    /// Makes all writes survive a power cut.
    ///
    /// Fails with the lower file's error, once for each loss that any open has received.
    pub(crate) fn sync(&self, data_only: bool) -> Result<(), FsError> {
        let syncs = self.file.syncs();
        let done = syncs.run(&*self.file, data_only);
        let losses = syncs.losses.load(SeqCst);
        let told = self.told.swap(losses, SeqCst);
        done?;
        if told != losses {
            return Err(Errno::from_raw_os_error(syncs.reason.load(SeqCst)).into());
        }
        Ok(())
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if self.writes {
            self.file.end_writing(Arc::strong_count(&self.file) > 1);
        }
    }
}

impl Deref for Opener {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.file
    }
}
