//! Bytes that remember a failed sync.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underseal_volume::{HeaderLock, LockTo, ReadAt, Target};

use super::Bytes;

/// Bytes, and whether a sync of them has failed.
pub(super) struct Watched {
    bytes: Bytes,
    sync_failed: Arc<AtomicBool>,
}

impl Watched {
    pub(super) fn new(bytes: Bytes, sync_failed: Arc<AtomicBool>) -> Self {
        Self { bytes, sync_failed }
    }
}

impl ReadAt for Watched {
    fn size(&self) -> io::Result<u64> {
        self.bytes.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.read_exact_at(buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.bytes.forget_cached(range);
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        self.bytes.lock_within(to, patience)
    }
}

impl Target for Watched {
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.bytes.write_all_at(data, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.bytes.sync_all().inspect_err(|_| self.sync_failed.store(true, Ordering::SeqCst))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.bytes.set_len(size)
    }
}
