//! What a request is, for devices that stand on others and for messages.

use rustix::io::Errno;

use crate::{Buffer, Error, ErrorKind, Finished, Io};

/// What a request does.
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
    /// True when it changes what is stored.
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zero)
    }

    /// The error of such a request at byte `offset`, as the system would report it.
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

    /// The error of one with tuples where none are kept.
    pub(crate) fn untagged(self, offset: u64) -> Error {
        self.failed(offset, "the device keeps no tags beside its blocks", Errno::OPNOTSUPP)
    }
}

impl Io {
    /// What it does.
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

    /// The offset and the length of what it does it to; nothing for a flush.
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

    /// It has to be on stable storage when it is over.
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::Write { durable: true, .. } | Self::WriteTagged { durable: true, .. })
    }

    /// How many bytes a read or write moves.
    pub(crate) fn moves(&self) -> Option<usize> {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::ReadTagged { range, .. }
            | Self::WriteTagged { range, .. } => Some(range.len()),
            _ => None,
        }
    }

    /// The request, for a device that keeps no tuples.
    ///
    /// # Errors
    /// One with tuples is over.
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

    /// Its memory, when it has any.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.into_memory().0
    }

    /// Its memory for bytes, and that for tuples.
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
