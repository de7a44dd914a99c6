//! A request's bytes in memory that another process can change: plaintext is encrypted from there,
//! and decrypted to there.

#![expect(unsafe_code, reason = "memory that another process writes to")]

use std::fmt;
use std::sync::Arc;

use underseal_cipher::{SharedDestination, SharedSource};

/// Keeps shared memory mapped.
pub trait SharedOwner: Send + Sync {
    /// True when some of the memory is gone: bytes that were read from it meanwhile are not the
    /// other process's.
    fn is_lost(&self) -> bool;
}

/// Bytes in memory that another process can change, in the order of the volume's.
///
/// The other process may read and change the bytes at any moment. A write encrypts the bytes that
/// it reads, once; a read's plaintext may be visible before the request completes, and is promised
/// only then.
pub struct SharedBytes(Arc<SharedList>);

#[derive(Default)]
struct SharedList {
    spans: Vec<SharedSpan>,
    len: usize,
    owner: Option<Arc<dyn SharedOwner>>,
}

/// A run of shared bytes.
#[derive(Clone, Copy)]
struct SharedSpan {
    at: *mut u8,
    len: usize,
}

// SAFETY: places in memory that is anyway shared, which the owner keeps mapped; each access stands
// for itself.
unsafe impl Send for SharedList {}
// SAFETY: as above.
unsafe impl Sync for SharedList {}

impl SharedBytes {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Empties the list for another request, if no worker uses it any more.
    pub(crate) fn reuse(mut self) -> Option<Self> {
        let list = Arc::get_mut(&mut self.0)?;
        list.spans.clear();
        (list.len, list.owner) = (0, None);
        Some(self)
    }

    /// Sets the owner of the memory.
    pub(crate) fn set_owner(&mut self, owner: Arc<dyn SharedOwner>) {
        if let Some(list) = Arc::get_mut(&mut self.0) {
            list.owner = Some(owner);
        }
    }

    /// Appends `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are readable and, for a read, writable for as long as the owner lives, and no
    /// reference of this process points to them in that time.
    pub unsafe fn push(&mut self, at: *mut u8, len: usize) {
        let Some(list) = Arc::get_mut(&mut self.0) else { return };
        list.len += len;
        match list.spans.last_mut() {
            Some(last) if last.at.wrapping_add(last.len) == at => last.len += len,
            _ => list.spans.push(SharedSpan { at, len }),
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True for an empty list.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// True when some of the memory is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.owner.as_ref().is_some_and(|owner| owner.is_lost())
    }

    /// The rest of the span at `offset`; `None` behind the last byte.
    fn span(&self, offset: usize) -> Option<SharedSpan> {
        let mut skip = offset;
        for span in &self.0.spans {
            if skip < span.len {
                return Some(SharedSpan { at: span.at.wrapping_add(skip), len: span.len - skip });
            }
            skip -= span.len;
        }
        None
    }

    /// Up to `most` contiguous bytes at `offset`, for reading.
    pub(crate) fn source(&self, offset: usize, most: usize) -> Option<SharedSource<'_>> {
        let SharedSpan { at, len } = self.span(offset)?;
        // SAFETY: the contract of `push`, and the owner lives as long as this.
        Some(unsafe { SharedSource::new(at, len.min(most)) })
    }

    /// Up to `most` contiguous bytes at `offset`, for writing.
    pub(crate) fn destination(&self, offset: usize, most: usize) -> Option<SharedDestination<'_>> {
        let SharedSpan { at, len } = self.span(offset)?;
        // SAFETY: as in `source`.
        Some(unsafe { SharedDestination::new(at, len.min(most)) })
    }

    /// Copies the shared bytes from `offset` on. The rest of `bytes` is unchanged.
    pub(crate) fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len()
            && let Some(source) = self.source(offset + done, bytes.len() - done)
        {
            let len = source.len();
            source.copy_to(&mut bytes[done..done + len]);
            done += len;
        }
    }

    /// Overwrites the shared bytes from `offset` on, as far as `bytes` reaches.
    pub(crate) fn copy_from(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len()
            && let Some(destination) = self.destination(offset + done, bytes.len() - done)
        {
            let len = destination.len();
            destination.copy_from(&bytes[done..done + len]);
            done += len;
        }
    }
}

impl Clone for SharedBytes {
    /// Shares the list with a part of a request or a worker.
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBytes").field("len", &self.0.len).finish_non_exhaustive()
    }
}

/// The shared bytes of a request, in which a piece finds its bytes.
#[derive(Debug, Clone)]
pub(crate) struct SharedView {
    pub(crate) bytes: SharedBytes,
    /// The byte of the volume that the first shared byte stands for.
    pub(crate) base: u64,
}

impl SharedView {
    /// The index of the volume's byte `at` among the shared bytes.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "ranges with memory are shorter than the address space"
    )]
    pub(crate) fn offset(&self, at: u64) -> usize {
        (at - self.base) as usize
    }
}
