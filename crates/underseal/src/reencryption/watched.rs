//! Bytes that remember a failed sync. One of a file that was removed or replaced fails: its bytes
//! are lost with the last program that has it open.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underseal_volume::{HeaderLock, LockTo, ReadAt, Target, keeps_name};

use super::Bytes;

/// Bytes, and whether a sync of them has failed.
pub(super) struct Watched {
    bytes: Bytes,
    /// The bytes' file, if it must keep its name.
    named: Option<File>,
    sync_failed: Arc<AtomicBool>,
}

impl Watched {
    pub(super) fn new(bytes: Bytes, named: Option<File>, sync_failed: Arc<AtomicBool>) -> Self {
        Self { bytes, named, sync_failed }
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
        let synced = self.bytes.sync_all().and_then(|()| self.named.as_ref().map_or(Ok(()), keeps_name));
        synced.inspect_err(|_| self.sync_failed.store(true, Ordering::SeqCst))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.bytes.set_len(size)
    }
}
