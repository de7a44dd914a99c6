//! A lower file that is open already: opened for writing too, and read again after another program
//! has changed it.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{FileState, FsError, OpenFile, open_lower, take};
use crate::lock::{self, LockMode};

impl OpenFile {
    /// Whether it was opened for writing, by any of those who have it open.
    pub(crate) fn is_writable(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(self.as_fd());
        flags.is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDWR)
    }

    /// Makes sure that it can be written to. One thread at a time.
    pub(crate) fn make_writable(&self, path: &str) -> Result<(), FsError> {
        if self.view.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        if self.is_writable() {
            return Ok(());
        }
        let writer = open_lower(path, true)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, FileState::Plain) {
            lock::unlock(&self.first);
            if let Err(e) = take(&writer, true, &Weak::new()) {
                // Another mount has the file for writing now: this one keeps its shared lock.
                let _ = lock::lock(&self.first, LockMode::Shared);
                return Err(e);
            }
            // Between the two locks another program may have changed the header.
            *state = FileState::of(&self.view, writer.as_fd())?;
            self.told.store(state.size(), Relaxed);
        }
        // The caller lets one thread in at a time, so no writer is set yet.
        let _ = self.writer.set(writer);
        Ok(())
    }

    /// Reads the header again. A file without one, which is not locked, stays what it is.
    pub(crate) fn reread(&self) -> Result<(), FsError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, FileState::Plain) {
            *state = FileState::of(&self.view, self.as_fd())?;
            self.told.store(state.size(), Relaxed);
        }
        Ok(())
    }
}
