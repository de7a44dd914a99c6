//! The size that the kernel has of a file, which it appends at, and reads up to.
//!
//! The kernel learns sizes with the attributes, keeps them for a while, and counts its own writes.
//! The lower file may have grown meanwhile: through another mount, or below. So an open compares
//! the two sizes under the lower file's lock:
//!
//! ```text
//!   the kernel's size    an open
//!   is right             goes on
//!   is too small         stores the file's last byte in the kernel's pages, which moves its end
//!   is too large         fails with ESTALE: the kernel looks the file up again, and comes back
//!   changed meanwhile    fails with EBUSY, for writing
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::cached::Patience;
use super::nodes::{FileNode, FileSlot};
use super::{Answer, Fs, locked};
use crate::EXTENT;
use crate::file::OpenFile;

/// How long the kernel takes at most to learn a size, and to look a file up again and open it.
const LATE: Duration = Duration::from_secs(1);

/// The state of the kernel's size.
#[derive(Default)]
pub(super) struct KernelSize {
    /// The size in the last attributes, where it is known.
    told: Option<u64>,
    /// When another size was sent than the one before: a thread may not have taken the reply yet.
    changed: Option<Instant>,
    /// The number of replies with a size.
    replies: u64,
    /// When the kernel was sent back to look at the size, and the replies until then.
    sent_back: Option<(Instant, u64)>,
    /// True when the kernel knew the size as the open file was locked for writing: it knows it as
    /// long as the file is open.
    follows: bool,
}

impl KernelSize {
    /// Sets whether the kernel knows the open file's size.
    pub(super) fn follows(&mut self, follows: bool) {
        self.follows = follows;
    }

    /// Notes the kernel's size after its own writes.
    pub(super) fn is(&mut self, size: Option<u64>) {
        self.told = size;
    }

    /// True when the kernel was sent back a moment ago, and has looked since.
    fn has_looked(&self) -> bool {
        self.sent_back.is_some_and(|(then, replies)| then.elapsed() < LATE && replies < self.replies)
    }

    fn is_fresh(&self) -> bool {
        self.changed.is_some_and(|then| then.elapsed() < LATE)
    }
}

impl FileSlot {
    /// Notes the size in a reply to the kernel.
    pub(super) fn tells(&mut self, size: u64) {
        let follows = self.follows_kernel();
        let end = &mut self.end;
        if !follows && end.told.is_some_and(|told| told != size) {
            end.changed = Some(Instant::now());
        }
        (end.told, end.replies) = (Some(size), end.replies + 1);
    }

    /// True when the kernel knows the size of the open file, because it makes all changes of it.
    pub(super) fn follows_kernel(&self) -> bool {
        self.end.follows && self.open.upgrade().is_some_and(|file| file.is_writable())
    }
}

impl Fs {
    /// Makes sure that the kernel has the size of a file that is being opened, with its lower file
    /// locked. Returns false where a thread without patience would wait.
    ///
    /// Fails with `ESTALE` when the kernel has to look at the file again, and with `EBUSY` when the
    /// size of a file to be written has changed since it did. A file that grows all the time is
    /// opened for reading as it is.
    pub(super) fn tell_size(
        &self,
        node: &Arc<FileNode>,
        file: &OpenFile,
        write: bool,
        patience: Patience,
    ) -> Answer<bool> {
        let size = self.size(node, &fstat(file)?)?;
        let mut slot = locked(&node.file);
        let Some(told) = slot.end.told.filter(|_| !slot.follows_kernel()) else { return Ok(true) };
        let may_lag = write && size > 0 && slot.end.is_fresh();
        if told == size && !may_lag {
            return Ok(true);
        }
        if told <= size {
            if patience == Patience::Refuse {
                return Ok(false);
            }
            drop(slot);
            if self.store_end(node, file, size) {
                locked(&node.file).end.told = Some(size);
                return Ok(true);
            }
            slot = locked(&node.file);
        }
        match slot.end.has_looked() {
            true if told == size || !write => Ok(true),
            true => Err(Errno::BUSY),
            false => {
                slot.end.sent_back = Some((Instant::now(), slot.end.replies));
                Err(Errno::STALE)
            }
        }
    }

    /// Moves the kernel's end of a file to `size`, which is not 0, if it lies before. Returns false
    /// when the file's last byte cannot be read, or the kernel does not take it.
    fn store_end(&self, node: &Arc<FileNode>, file: &OpenFile, size: u64) -> bool {
        let mut scratch = [0; 3 * EXTENT];
        let last = file.read(size - 1, 1, &mut scratch).ok().and_then(|last| scratch[last].first().copied());
        last.is_some_and(|byte| self.notify(node, move |kernel, id| kernel.store(id, size - 1, byte)))
    }
}
