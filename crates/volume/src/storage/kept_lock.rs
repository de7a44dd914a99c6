//! A header whose lock is kept for several updates.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{ReadAt, Target};
use crate::Result;
use crate::lock::{HeaderLock, LockTo};

/// The target of a header. While the lock is kept, operations on the header do not take it: flock
/// would lose it with the first operation that ends, and the lock file of a block device would make
/// them wait.
pub(crate) struct KeptLock<'d> {
    on: &'d (dyn Target + Sync),
    kept: Mutex<LockState<'d>>,
}

#[derive(Debug)]
enum LockState<'d> {
    Free,
    /// The lock is kept. The value is `None` for a target without locks.
    Kept {
        _lock: Option<HeaderLock<'d>>,
    },
}

impl<'d> KeptLock<'d> {
    pub(crate) fn new(on: &'d (dyn Target + Sync)) -> Self {
        Self { on, kept: Mutex::new(LockState::Free) }
    }

    /// Takes the lock to change the header, and keeps it until [`KeptLock::release`].
    pub(crate) fn keep(&self, patience: Duration) -> Result<()> {
        let mut kept = self.kept();
        if let LockState::Free = *kept {
            *kept = LockState::Kept { _lock: self.on.lock_within(LockTo::Change, patience)? };
        }
        Ok(())
    }

    /// Releases the lock, if it is kept.
    pub(crate) fn release(&self) {
        *self.kept() = LockState::Free;
    }

    fn kept(&self) -> MutexGuard<'_, LockState<'d>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadAt for KeptLock<'_> {
    fn size(&self) -> io::Result<u64> {
        self.on.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.on.read_exact_at(buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.on.forget_cached(range);
    }

    fn lock_within(&self, to: LockTo, patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        match *self.kept() {
            LockState::Kept { .. } => Ok(None),
            LockState::Free => self.on.lock_within(to, patience),
        }
    }
}

impl Target for KeptLock<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.on.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.on.sync_all()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.on.set_len(size)
    }
}
