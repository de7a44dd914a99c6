//! Bytes in memory as a target of header writes.

use std::cell::RefCell;
use std::io;

use super::{ReadAt, Target};

/// Bytes of a fixed length.
pub(crate) struct Bytes(RefCell<Vec<u8>>);

impl Bytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn into_inner(self) -> Vec<u8> {
        self.0.into_inner()
    }
}

impl ReadAt for Bytes {
    fn size(&self) -> io::Result<u64> {
        self.0.borrow()[..].size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.borrow()[..].read_exact_at(buf, offset)
    }
}

impl Target for Bytes {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut all = self.0.borrow_mut();
        let place = all.get_mut(from..).and_then(|tail| tail.get_mut(..bytes.len()));
        place.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(bytes);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
