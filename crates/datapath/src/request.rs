//! What goes into a queue, and what comes out.

use underseal_device::Buffer;

use crate::{Result, SharedBytes};

/// A request, in bytes of the volume. Offsets and lengths are multiples of
/// [`Mapping::block`](crate::Mapping::block).
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are explained beside each request")]
pub enum Request {
    /// Read `len` bytes; the completion brings them.
    Read { offset: u64, len: usize },
    /// Fill the buffer, which the completion brings back, with [whole
    /// sectors](crate::Mapping::sector).
    ReadInto { offset: u64, data: Buffer },
    /// Write the buffer, which is encrypted in place; `durable`: it is on stable storage when it
    /// completes.
    Write { offset: u64, data: Buffer, durable: bool },
    /// Read as many bytes as `into` has, to there.
    ReadShared { offset: u64, into: SharedBytes },
    /// Write the bytes of `from`; `data` is memory for what they are encrypted to, as long.
    WriteShared { offset: u64, from: SharedBytes, data: Buffer, durable: bool },
    /// Everything acknowledged before is on stable storage when this completes.
    Flush,
    /// The bytes need not be kept. Does nothing where the volume does not allow discards.
    Discard { offset: u64, len: u64, durable: bool },
    /// The bytes read as zeros afterwards; `punch`: their space may be freed where zeros below are
    /// zeros above; `fast`: fail with `Unsupported` unless it costs less than writing.
    WriteZeroes { offset: u64, len: u64, durable: bool, punch: bool, fast: bool },
    /// The bytes will be read soon.
    Prefetch { offset: u64, len: u64 },
}

impl Request {
    /// The range it touches: offset and length.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len } => Some((*offset, *len as u64)),
            Self::ReadShared { offset, into } => Some((*offset, into.len() as u64)),
            Self::ReadInto { offset, data }
            | Self::Write { offset, data, .. }
            | Self::WriteShared { offset, data, .. } => Some((*offset, data.len() as u64)),
            Self::Flush => None,
            Self::Discard { offset, len, .. }
            | Self::WriteZeroes { offset, len, .. }
            | Self::Prefetch { offset, len } => Some((*offset, *len)),
        }
    }

    pub(crate) fn writes(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteShared { .. }
            | Self::Discard { .. }
            | Self::WriteZeroes { .. } => true,
            Self::Read { .. }
            | Self::ReadInto { .. }
            | Self::ReadShared { .. }
            | Self::Flush
            | Self::Prefetch { .. } => false,
        }
    }

    /// It moves bytes of the client's.
    pub(crate) fn moves(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::ReadInto { .. }
            | Self::ReadShared { .. }
            | Self::Write { .. }
            | Self::WriteShared { .. } => true,
            Self::Flush | Self::Discard { .. } | Self::WriteZeroes { .. } | Self::Prefetch { .. } => false,
        }
    }

    /// The memory that it came with.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::ReadInto { data, .. } | Self::Write { data, .. } | Self::WriteShared { data, .. } => {
                Some(data)
            }
            _ => None,
        }
    }
}

/// A request that is over.
#[derive(Debug)]
pub struct Completion {
    /// The number that the export gave it.
    pub tag: u64,
    /// How it ended.
    pub result: Result<()>,
    /// A read's plaintext, unless that went to shared bytes, or a write's memory (scrambled by
    /// now). It goes back through [`Queue::free`](crate::Queue::free). After a failed read its
    /// contents are not the volume's.
    pub buffer: Option<Buffer>,
}
