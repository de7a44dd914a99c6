//! The kinds of requests, for devices on other devices and for messages.

use rustix::io::Errno;

use crate::{Buffer, Error, ErrorKind, Finished, Io};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of `Io`, which explains them")]
pub enum IoKind {
    Read,
    Write,
    Flush,
    Discard,
    Zero,
    Prefetch,
}

impl IoKind {
    /// True when requests of this kind change stored bytes.
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zero)
    }

    /// The error of a request at byte `offset`, as the system would report it.
    pub fn failed(self, offset: u64, why: &str, errno: Errno) -> Error {
        let (kind, what) = match self {
            Self::Read => (ErrorKind::Read, "read"),
            Self::Write => (ErrorKind::Write, "write"),
            Self::Flush => (ErrorKind::Flush, "flush"),
            Self::Discard => (ErrorKind::Other, "discard"),
            Self::Zero => (ErrorKind::Other, "zeroing"),
            Self::Prefetch => (ErrorKind::Other, "prefetch"),
        };
        Error::new(kind, format!("{what} at byte {offset}: {why}")).with_source(errno)
    }

    /// The error of a request with tuples to a device without tags.
    pub(crate) fn untagged(self, offset: u64) -> Error {
        self.failed(offset, "the device keeps no tags beside its blocks", Errno::OPNOTSUPP)
    }
}

impl Io {
    /// The request's kind.
    pub fn kind(&self) -> IoKind {
        match self {
            Self::Read { .. } | Self::ReadTagged { .. } => IoKind::Read,
            Self::Write { .. } | Self::WriteTagged { .. } => IoKind::Write,
            Self::Flush => IoKind::Flush,
            Self::Discard { .. } => IoKind::Discard,
            Self::Zero { .. } => IoKind::Zero,
            Self::Prefetch { .. } => IoKind::Prefetch,
        }
    }

    /// The request's offset and length; zeros for a flush.
    pub fn extent(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, range, .. }
            | Self::Write { offset, range, .. }
            | Self::ReadTagged { offset, range, .. }
            | Self::WriteTagged { offset, range, .. } => (*offset, range.len() as u64),
            Self::Flush => (0, 0),
            Self::Discard { offset, len }
            | Self::Zero { offset, len, .. }
            | Self::Prefetch { offset, len } => (*offset, *len),
        }
    }

    /// True when the written data must be on stable storage at the end.
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::Write { durable: true, .. } | Self::WriteTagged { durable: true, .. })
    }

    /// The number of bytes that a read or write moves.
    pub(crate) fn moves(&self) -> Option<usize> {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::ReadTagged { range, .. }
            | Self::WriteTagged { range, .. } => Some(range.len()),
            _ => None,
        }
    }

    /// The request, for a device without tags.
    ///
    /// # Errors
    /// Returns a request with tuples as finished, with an error.
    #[expect(clippy::result_large_err, reason = "it has the request's memory, as what was asked for has")]
    pub fn without_tags(self, slot: u32) -> Result<Self, Finished> {
        match self {
            Self::ReadTagged { offset, .. } | Self::WriteTagged { offset, .. } => {
                let error = self.kind().untagged(offset);
                Err(Finished::of(slot, self, Err(error)))
            }
            io => Ok(io),
        }
    }

    /// The request's memory, if it has any.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.into_memory().0
    }

    /// The request's memory for bytes, and its memory for tuples.
    pub fn into_memory(self) -> (Option<Buffer>, Option<Buffer>) {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => (Some(buffer), None),
            Self::ReadTagged { buffer, tags, .. } | Self::WriteTagged { buffer, tags, .. } => {
                (Some(buffer), Some(tags))
            }
            _ => (None, None),
        }
    }
}
