//! fsync: what it makes durable, and who is told when it cannot.
//!
//! **Sizes.** A data-only sync makes durable what is needed to find the data again, and for a lower
//! filesystem an xattr is not. With the header there, the first data-only sync after a size was
//! written is a whole one.
//!
//! **Losses.** The kernel tells of a write-back that failed once for each open file. All who have a
//! file open here share one, so losses are counted, and each is told at its next fsync.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::io::Errno;

use super::{FsError, OpenFile};

/// What is durable of a lower file beside its data, and what was lost of it.
#[derive(Default)]
pub(super) struct Syncs {
    /// Sizes that were written to the xattr, and how many of them are known to be durable.
    sizes: AtomicU64,
    durable: AtomicU64,
    /// Write-backs that failed, and the last one's reason.
    losses: AtomicU64,
    reason: AtomicI32,
    /// Held while a sync runs and until its failure is counted.
    running: RwLock<()>,
}

impl Syncs {
    /// The size, or the whole header, is in the xattr and may not be durable yet.
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
            Err(e) => {
                self.reason.store(e.raw_os_error(), SeqCst);
                self.losses.fetch_add(1, SeqCst);
            }
        }
        drop(running);
        // One that ran beside this one may have heard what concerns both.
        drop(self.running.write());
        done
    }
}

/// One who has a file open.
pub(crate) struct Opener {
    file: Arc<OpenFile>,
    /// The losses that it was told of, or that were before its time.
    told: AtomicU64,
}

impl Opener {
    pub(crate) fn new(file: Arc<OpenFile>) -> Self {
        let told = file.syncs().losses.load(SeqCst).into();
        Self { file, told }
    }

    pub(crate) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    /// Makes all that was written survive a power cut.
    ///
    /// # Errors
    /// What the lower file says; once for each loss that anybody was told of.
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

impl Deref for Opener {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.file
    }
}
