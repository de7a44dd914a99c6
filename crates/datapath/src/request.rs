//! Requests to a queue, and their completions.

use underseal_device::Buffer;

use crate::{Result, SharedBytes};

/// A request, in bytes of the volume. Offsets and lengths are multiples of
/// [`Mapping::block`](crate::Mapping::block).
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are explained beside each request")]
pub enum Request {
    /// Read `len` bytes; the completion has them.
    Read { offset: u64, len: usize },
    /// Fill the buffer, which the completion returns, with [whole sectors](crate::Mapping::sector).
    ReadInto { offset: u64, data: Buffer },
    /// Write the buffer, which is encrypted in place; `durable`: the data is on stable storage at
    /// the completion.
    Write { offset: u64, data: Buffer, durable: bool },
    /// Read into the shared bytes, as many as they are.
    ReadShared { offset: u64, into: SharedBytes },
    /// Write shared bytes; `data` is memory of the same length for their ciphertext.
    WriteShared { offset: u64, from: SharedBytes, data: Buffer, durable: bool },
    /// All writes acknowledged before are on stable storage at the completion.
    Flush,
    /// The bytes need not be kept. Without effect where the volume does not allow discards.
    Discard { offset: u64, len: u64, durable: bool },
    /// The bytes read as zeros afterwards; `punch`: their space may be freed where zeros in the
    /// lower device read as zeros; `fast`: fails with `Unsupported` unless this is cheaper than
    /// writing.
    WriteZeroes { offset: u64, len: u64, durable: bool, punch: bool, fast: bool },
    /// The bytes will be read soon.
    Prefetch { offset: u64, len: u64 },
}

impl Request {
    /// The request's offset and length.
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

    /// True when the request moves bytes of the client.
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

    /// Returns the request's memory.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::ReadInto { data, .. } | Self::Write { data, .. } | Self::WriteShared { data, .. } => {
                Some(data)
            }
            _ => None,
        }
    }
}

/// A completed request.
#[derive(Debug)]
pub struct Completion {
    /// The number that the export gave the request.
    pub tag: u64,
    /// The request's result.
    pub result: Result<()>,
    /// A read's plaintext, unless that went to shared bytes, or a write's memory (encrypted by
    /// now). The export returns it with [`Queue::free`](crate::Queue::free). After a failed read
    /// its contents are not the volume's.
    pub buffer: Option<Buffer>,
}
