//! A lock for the moment of an update: reading bytes, checking them and writing others, as programs
//! change a header. Devices without locks (NBD exports) have files for it.

use std::fmt;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock of a device's updates. Processes exclude each other by flock on its files, and threads
/// of this process, which share these open files, by a flag.
pub struct UpdateLock {
    device: String,
    files: Vec<File>,
    is_taken: Mutex<bool>,
}

/// A held [`UpdateLock`], until it is dropped.
pub struct UpdateGuard<'l>(&'l UpdateLock);

impl UpdateLock {
    pub(crate) fn new(device: &str, files: Vec<File>) -> Self {
        Self { device: device.to_owned(), files, is_taken: Mutex::default() }
    }

    /// Waits for the lock: `exclusive` for an update, else to read what no update has in hand.
    ///
    /// # Errors
    /// `Locked` when another user keeps it for longer than `patience`.
    pub fn take(&self, exclusive: bool, patience: Duration) -> Result<UpdateGuard<'_>> {
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        let start = Instant::now();
        loop {
            match self.attempt(operation) {
                Some(guard) => return Ok(guard),
                None if start.elapsed() < patience => thread::sleep(PAUSE),
                None => {
                    let what = format!("{}: another program changes its header; try again", self.device);
                    return Err(Error::new(ErrorKind::Locked, what));
                }
            }
        }
    }

    fn attempt(&self, operation: FlockOperation) -> Option<UpdateGuard<'_>> {
        let mut is_taken = self.is_taken();
        if *is_taken {
            return None;
        }
        for file in &self.files {
            match rustix::io::retry_on_intr(|| flock(file, operation)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    self.unlock();
                    return None;
                }
                Err(e) => {
                    log::warn!(
                        "{}: cannot be locked: another program may change its header: {e}",
                        self.device
                    );
                }
            }
        }
        *is_taken = true;
        Some(UpdateGuard(self))
    }

    fn unlock(&self) {
        for file in &self.files {
            // A failure is ignored: the lock ends with the file.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }

    fn is_taken(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UpdateGuard<'_> {
    fn drop(&mut self) {
        let mut is_taken = self.0.is_taken();
        self.0.unlock();
        *is_taken = false;
    }
}

impl fmt::Debug for UpdateGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UpdateGuard").field(&self.0.device).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_alone_among_processes_and_threads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = || UpdateLock::new("device", vec![file.reopen().unwrap()]);
        let (one, two) = (lock(), lock());
        let brief = Duration::from_millis(30);
        let refused = |lock: &UpdateLock, exclusive| {
            lock.take(exclusive, brief).is_err_and(|e| e.kind() == ErrorKind::Locked)
        };
        let held = one.take(true, brief).unwrap();
        assert!(refused(&one, true) && refused(&two, true) && refused(&two, false));
        drop(held);
        let reads = (one.take(false, brief).unwrap(), two.take(false, brief).unwrap());
        assert!(refused(&lock(), true));
        drop(reads);
        drop(two.take(true, brief).unwrap());
    }
}
