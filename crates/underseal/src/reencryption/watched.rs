//! Data of which a sync that fails is not forgotten.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underseal_volume::{HeaderLock, LockTo, ReadAt, Target};

use super::Bytes;

/// Data, and whether a sync of it failed.
pub(super) struct Watched {
    data: Bytes,
    sync_failed: Arc<AtomicBool>,
}

impl Watched {
    pub(super) fn new(data: Bytes, sync_failed: Arc<AtomicBool>) -> Self {
        Self { data, sync_failed }
    }
}

impl ReadAt for Watched {
    fn size(&self) -> io::Result<u64> {
        self.data.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.data.read_exact_at(buf, offset)
    }

    fn lock(&self, to: LockTo) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        self.data.lock(to)
    }
}

impl Target for Watched {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.data.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.data.sync_all().inspect_err(|_| self.sync_failed.store(true, Ordering::SeqCst))
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.data.set_len(size)
    }
}
