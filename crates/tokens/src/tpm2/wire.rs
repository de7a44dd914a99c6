//! The TPM's bytes: big-endian numbers, and sized buffers (TPM 2.0 Library, part 2).

/// Writes a command's parts.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(mut self, n: u8) -> Self {
        self.0.push(n);
        self
    }

    pub(super) fn u16(mut self, n: u16) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub(super) fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Writes a buffer with its length before it. All written buffers are short.
    pub(super) fn sized(self, bytes: &[u8]) -> Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len).raw(&bytes[..usize::from(len)])
    }
}

/// Reads an answer's parts; a read returns `None` at an early end.
#[derive(Clone, Copy)]
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub(super) fn sized(&mut self) -> Option<&'b [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}
