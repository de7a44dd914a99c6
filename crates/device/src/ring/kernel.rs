//! A kernel ring, with entries of 64 bytes, or of 128 for drivers with commands of 80 bytes.

#![expect(unsafe_code, reason = "io_uring: the kernel reads and writes memory that its entries name")]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::squeue::{Entry, Entry128};
use io_uring::{CompletionQueue, IoUring, Parameters, Submitter};

pub(super) enum KernelRing {
    Short(IoUring),
    Long(IoUring<Entry128>),
}

impl KernelRing {
    /// Adds an entry to the submission queue. False when the queue is full.
    ///
    /// # Safety
    /// The memory that the operation refers to stays valid, and untouched where the kernel writes,
    /// until its completion has come.
    pub(super) unsafe fn push(&mut self, entry: &Entry) -> bool {
        match self {
            // SAFETY: the caller's promise.
            Self::Short(ring) => unsafe { ring.submission().push(entry) }.is_ok(),
            // SAFETY: the caller's promise.
            Self::Long(ring) => unsafe { ring.submission().push(&entry.clone().into()) }.is_ok(),
        }
    }

    /// Adds a long entry to the submission queue. False when the queue is full, or has short
    /// entries.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    pub(super) unsafe fn push_long(&mut self, entry: &Entry128) -> bool {
        match self {
            Self::Short(_) => false,
            // SAFETY: the caller's promise.
            Self::Long(ring) => unsafe { ring.submission().push(entry) }.is_ok(),
        }
    }

    /// True when the kernel has all entries.
    pub(super) fn has_submitted_all(&mut self) -> bool {
        match self {
            Self::Short(ring) => ring.submission().is_empty(),
            Self::Long(ring) => ring.submission().is_empty(),
        }
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        match self {
            Self::Short(ring) => ring.submitter(),
            Self::Long(ring) => ring.submitter(),
        }
    }

    pub(super) fn completion(&mut self) -> CompletionQueue<'_> {
        match self {
            Self::Short(ring) => ring.completion(),
            Self::Long(ring) => ring.completion(),
        }
    }

    pub(super) fn params(&self) -> &Parameters {
        match self {
            Self::Short(ring) => ring.params(),
            Self::Long(ring) => ring.params(),
        }
    }

    pub(super) fn submit(&self) -> io::Result<usize> {
        self.submitter().submit()
    }

    pub(super) fn submit_and_wait(&self, want: usize) -> io::Result<usize> {
        self.submitter().submit_and_wait(want)
    }
}

impl AsRawFd for KernelRing {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Short(ring) => ring.as_raw_fd(),
            Self::Long(ring) => ring.as_raw_fd(),
        }
    }
}
