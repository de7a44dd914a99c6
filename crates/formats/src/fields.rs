//! Numbers at fixed places of a header, each read within bounds; and ranges of an image, each
//! checked against its size.

use std::io;
use std::ops::Range;

use underseal_volume::ReadAt;

use crate::{Error, ErrorKind, Result};

/// Header bytes. A field beyond their end is a `BadHeader`, never a panic.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The `len` bytes at `at`.
    ///
    /// # Errors
    /// `BadHeader` beyond the end.
    pub fn bytes(self, at: usize, len: usize) -> Result<&'a [u8]> {
        let end = at.checked_add(len);
        end.and_then(|end| self.0.get(at..end)).ok_or_else(|| {
            let have = self.0.len();
            Error::new(ErrorKind::BadHeader, format!("{len} bytes at byte {at} of {have} bytes of header"))
        })
    }

    /// The `N` bytes at `at`.
    ///
    /// # Errors
    /// `BadHeader` beyond the end.
    pub fn array<const N: usize>(self, at: usize) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(at, N)?);
        Ok(out)
    }
}

macro_rules! numbers {
    ($($le:ident $be:ident $type:ty),*) => { impl Fields<'_> { $(
        /// The little-endian number at `at`.
        ///
        /// # Errors
        /// `BadHeader` beyond the end.
        pub fn $le(self, at: usize) -> Result<$type> {
            self.array(at).map(<$type>::from_le_bytes)
        }

        /// The big-endian number at `at`.
        ///
        /// # Errors
        /// `BadHeader` beyond the end.
        pub fn $be(self, at: usize) -> Result<$type> {
            self.array(at).map(<$type>::from_be_bytes)
        }
    )* } };
}
numbers!(le16 be16 u16, le32 be32 u32, le64 be64 u64);

/// The bytes `start..start + len` of an image of `size` bytes; the error names `what`.
///
/// # Errors
/// `TooSmall` when the range wraps or ends beyond the image.
pub fn range(what: &str, start: u64, len: u64, size: u64) -> Result<Range<u64>> {
    match start.checked_add(len) {
        Some(end) if end <= size => Ok(start..end),
        _ => {
            let context = format!("{what}: {len} bytes at byte {start} of an image of {size} bytes");
            Err(Error::new(ErrorKind::TooSmall, context))
        }
    }
}

/// Whether two ranges have a byte in common.
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Fills `buf` from byte `at` of an image, past pages that another device node of the same disk has
/// made stale.
///
/// # Errors
/// `TooSmall` beyond the end, `Io`.
pub fn read(from: &(impl ReadAt + ?Sized), at: u64, buf: &mut [u8]) -> Result<()> {
    from.forget_cached(at..at.saturating_add(buf.len() as u64));
    from.read_exact_at(buf, at).map_err(|e| {
        let kind = if e.kind() == io::ErrorKind::UnexpectedEof { ErrorKind::TooSmall } else { ErrorKind::Io };
        Error::new(kind, format!("cannot read {} bytes at byte {at}", buf.len())).with_source(e)
    })
}

/// The size of an image in bytes.
///
/// # Errors
/// `Io`.
pub fn size(of: &(impl ReadAt + ?Sized)) -> Result<u64> {
    of.size().map_err(|e| Error::new(ErrorKind::Io, "cannot find out the image's size").with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_ranges_beyond_the_end_are_errors() {
        let fields = Fields(&[1, 2, 3, 4, 5]);
        assert_eq!((fields.le16(0).unwrap(), fields.be32(1).unwrap()), (0x0201, 0x0203_0405));
        for at in [2, 5, usize::MAX] {
            assert_eq!(fields.le32(at).unwrap_err().kind(), ErrorKind::BadHeader, "{at}");
        }
        assert_eq!(range("data", 5, 5, 10).unwrap(), 5..10);
        for (start, len) in [(6, 5), (11, 0), (u64::MAX, 2)] {
            assert_eq!(range("data", start, len, 10).unwrap_err().kind(), ErrorKind::TooSmall);
        }
        assert!(overlap(&(0..2), &(1..3)) && !overlap(&(0..2), &(2..3)));
    }
}
