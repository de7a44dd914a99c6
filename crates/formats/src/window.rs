//! A part of an image, as if it were all of one: a partition of a disk.

use std::io;
use std::ops::Range;
use std::time::Duration;

use underseal_volume::{HeaderLock, LockTo, ReadAt, Segment, SegmentKind, Stored, Target, Volume};

use crate::Result;

/// Bytes of an image from one place on, as many as a partition has.
pub struct Window<T> {
    of: T,
    range: Range<u64>,
}

impl<T> Window<T> {
    /// The bytes `range` of `of`, which must lie within it.
    pub fn new(of: T, range: Range<u64>) -> Self {
        Self { of, range }
    }

    /// Where `len` bytes at `offset` lie in the image.
    fn place(&self, offset: u64, len: usize) -> io::Result<u64> {
        let at = self.range.start.checked_add(offset);
        let fits = |at: &u64| at.checked_add(len as u64).is_some_and(|end| end <= self.range.end);
        at.filter(fits).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl<T: std::ops::Deref<Target: ReadAt>> ReadAt for Window<T> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.range.end - self.range.start)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.of.read_exact_at(buf, self.place(offset, buf.len())?)
    }

    fn forget_cached(&self, range: Range<u64>) {
        let Some(start) = self.range.start.checked_add(range.start) else { return };
        self.of.forget_cached(start..self.range.start.saturating_add(range.end));
    }

    fn lock_within(
        &self,
        to: LockTo,
        patience: Duration,
    ) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        self.of.lock_within(to, patience)
    }
}

impl<T: std::ops::Deref<Target: Target>> Target for Window<T> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.of.write_all_at(bytes, self.place(offset, bytes.len())?)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.of.sync_all()
    }

    fn set_len(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The same volume on images in which its devices begin at the bytes `bases`, in the order of their
/// numbers.
///
/// # Errors
/// `BadHeader` when a segment would end beyond any file.
pub fn moved(volume: &Volume, bases: &[u64]) -> Result<Volume> {
    let segments = volume.segments().iter().map(|segment| {
        let kind = match &segment.kind {
            SegmentKind::Stored(stored) => {
                let base = bases.get(stored.device).copied().unwrap_or(0);
                SegmentKind::Stored(Stored { lower: stored.lower.saturating_add(base), ..stored.clone() })
            }
            other => other.clone(),
        };
        Segment { kind, ..segment.clone() }
    });
    let moved = Volume::new(segments.collect())?;
    Ok(moved.with_discards(volume.allow_discards()).with_dispatch(volume.dispatch()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_a_window_is_reached() {
        let bytes: Vec<u8> = (0..100).collect();
        let window = Window::new(&bytes[..], 10..20);
        let mut four = [0; 4];
        window.read_exact_at(&mut four, 6).unwrap();
        assert_eq!((four, window.size().unwrap()), ([16, 17, 18, 19], 10));
        for offset in [7, 10, u64::MAX, u64::MAX - 12] {
            assert!(window.read_exact_at(&mut four, offset).is_err(), "{offset}");
        }
    }
}
