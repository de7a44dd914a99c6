//! A lower file that is open already: opened for writing too, no longer open for writing, and read
//! again after another program has changed it.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError, Weak};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{FileState, FsError, OpenFile, open_lower, take};
use crate::lock::{self, LockMode};

impl OpenFile {
    /// Whether it is open for writing by any of those who have it open.
    pub(crate) fn is_writable(&self) -> bool {
        *self.writers() > 0
    }

    /// Counts an open for writing, and makes sure that the file can be written to. Returns true for
    /// the first one: until now another program may have written to the file.
    ///
    /// Fails with `EBUSY` when another mount or a tool uses it.
    pub(crate) fn begin_writing(&self, path: &str) -> Result<bool, FsError> {
        if self.view.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let mut writers = self.writers();
        let is_first = *writers == 0;
        if is_first {
            self.lock_for_writing(path)?;
        }
        *writers += 1;
        Ok(is_first)
    }

    fn lock_for_writing(&self, path: &str) -> Result<(), FsError> {
        let flags = rustix::fs::fcntl_getfl(self.as_fd())?;
        let is_open = flags & OFlags::ACCMODE == OFlags::RDWR;
        let writer = if is_open { None } else { Some(open_lower(path, true)?) };
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, FileState::Plain) {
            let fd = writer.as_ref().map_or(self.as_fd(), AsFd::as_fd);
            if writer.is_some() {
                // Both descriptors share the file, so that it is locked at every moment.
                take(fd, false, &Weak::new())?;
                lock::unlock(&self.first);
            }
            // Before the lock another program may have changed the header.
            let alone = take(fd, true, &Weak::new());
            match alone.and_then(|()| FileState::of(&self.view, fd)) {
                Ok(now) => *state = now,
                Err(e) => {
                    // The descriptor for writing is closed, and must not have the file alone.
                    let _ = lock::lock(fd, LockMode::Shared);
                    self.share();
                    return Err(e);
                }
            }
            self.told.store(state.size(), Relaxed);
        }
        if let Some(writer) = writer {
            // The count of writers is locked, so no other thread has set it.
            let _ = self.writer.set(writer);
        }
        Ok(())
    }

    /// Ends an open for writing. After the last one of a file that `stays` open, other mounts and
    /// tools may read it.
    pub(crate) fn end_writing(&self, stays: bool) {
        let mut writers = self.writers();
        *writers -= 1;
        if *writers == 0 && !self.is_plain() {
            match stays {
                true => self.share(),
                // Another thread may just be taking it for a reader.
                false => self.lacks_lock.store(true, Relaxed),
            }
        }
    }

    /// Takes the lock of a reader. The kernel takes a lock away where it refuses another mode of
    /// it, so another mount may have locked the file for writing meanwhile.
    fn share(&self) {
        let missing = lock::lock(self, LockMode::Shared).is_err();
        self.lacks_lock.store(missing, Relaxed);
    }

    /// Takes the lock of a reader if another mount was faster before.
    pub(crate) fn regain_lock(&self) {
        if self.lacks_lock.load(Relaxed) {
            let writers = self.writers();
            if *writers == 0 {
                self.share();
            }
        }
    }

    fn writers(&self) -> MutexGuard<'_, u64> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
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
