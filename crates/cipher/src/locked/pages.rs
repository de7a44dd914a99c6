//! Pages from the kernel.

use std::ptr::{self, NonNull};
use std::sync::{Once, OnceLock};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::{Error, ErrorKind, Result};

/// The callback for memory that cannot be locked.
static TELL: OnceLock<fn(&std::io::Error)> = OnceLock::new();
static TOLD: Once = Once::new();

pub(super) fn when_not_locked(tell: fn(&std::io::Error)) {
    let _ = TELL.set(tell);
}

/// Zeroed pages, locked and left out of core dumps. Their user wipes them.
pub(super) struct LockedPages {
    at: NonNull<u8>,
    len: usize,
}

impl LockedPages {
    /// Maps at least `len` bytes.
    ///
    /// A failure to lock them is no error, and reported once: the default limit is a few megabytes.
    pub(super) fn new(len: usize) -> Result<Self> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // existing memory.
        let at = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .map_err(|e| {
            Error::new(ErrorKind::Memory, format!("no memory for {len} bytes of key material"))
                .with_source(std::io::Error::from(e))
        })?;
        // SAFETY: the range is the mapping just made; locking and advising change no contents.
        let locked = unsafe {
            let _ = madvise(at, len, Advice::LinuxDontDump);
            mlock(at, len)
        };
        if let Err(e) = locked {
            TOLD.call_once(|| {
                if let Some(tell) = TELL.get() {
                    tell(&e.into());
                }
            });
        }
        let at = NonNull::new(at.cast())
            .ok_or_else(|| Error::new(ErrorKind::Memory, "the kernel mapped key memory at address zero"))?;
        Ok(Self { at, len })
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.at
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, whole, and has no references any longer.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
