//! An unlocked volume: the place and the cipher of its bytes.

use std::fmt;
use std::sync::Arc;

use underseal_cipher::{SectorCipher, SectorSize};

use crate::{CipherParameters, DispatchFlags, Error, ErrorKind, Result, cipher_parameters};

/// A range of the volume.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The beginning in the volume, in bytes.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The kind of the segment.
    pub kind: SegmentKind,
}

/// The kind of a segment.
#[derive(Debug, Clone)]
pub enum SegmentKind {
    /// Bytes on a lower device.
    Stored(Stored),
    /// Zeros; writes are dropped. Device-mapper's `zero`.
    Zero,
    /// Nothing: every request fails. Device-mapper's `error`.
    Error,
}

/// Bytes in one piece on one lower device, under one cipher and key. Several segments of a volume
/// may share the same bytes; the caller decides whether they may.
#[derive(Clone)]
pub struct Stored {
    /// The number of the lower device; LUKS and plain volumes have one device, number 0.
    pub device: usize,
    /// The beginning on the lower device, in bytes.
    pub lower: u64,
    /// dm-crypt's IV offset: the number added to the sector number within the segment, in 512-byte
    /// units.
    pub iv_offset: u64,
    /// The cipher with its key, or the null cipher for plain bytes (device-mapper's `linear`).
    pub cipher: Arc<dyn SectorCipher>,
    /// The parameters of that cipher, to build it with another key. `None` without a key.
    pub cipher_parameters: Option<Arc<CipherParameters>>,
}

impl Segment {
    /// Returns a segment on the first lower device; the arguments are as in [`Stored`].
    pub fn stored(start: u64, len: u64, lower: u64, iv_offset: u64, cipher: Arc<dyn SectorCipher>) -> Self {
        let kind =
            SegmentKind::Stored(Stored { device: 0, lower, iv_offset, cipher, cipher_parameters: None });
        Self { start, len, kind }
    }

    /// Returns the same segment with the parameters for another key.
    #[must_use]
    pub fn with_recipe(mut self, cipher_parameters: CipherParameters) -> Self {
        if let SegmentKind::Stored(stored) = &mut self.kind {
            stored.cipher_parameters = Some(Arc::new(cipher_parameters));
        }
        self
    }

    /// Returns the same segment, on another lower device.
    #[must_use]
    pub fn on_device(mut self, number: usize) -> Self {
        if let SegmentKind::Stored(stored) = &mut self.kind {
            stored.device = number;
        }
        self
    }

    /// Returns the stored bytes of the segment, if it has any.
    pub fn as_stored(&self) -> Option<&Stored> {
        match &self.kind {
            SegmentKind::Stored(stored) => Some(stored),
            SegmentKind::Zero | SegmentKind::Error => None,
        }
    }

    /// Returns the lower device and the place of the volume's byte `offset`, which is in this
    /// segment.
    pub fn lower(&self, offset: u64) -> Option<(usize, u64)> {
        self.as_stored().map(|stored| (stored.device, stored.lower + (offset - self.start)))
    }

    /// Returns the cipher of the volume's byte `offset`, which is in this segment, and dm-crypt's
    /// number of its sector.
    pub fn cipher(&self, offset: u64) -> Option<(&Arc<dyn SectorCipher>, u64)> {
        let sector = |stored: &Stored| ((offset - self.start) >> 9).wrapping_add(stored.iv_offset);
        self.as_stored().map(|stored| (&stored.cipher, sector(stored)))
    }

    /// The place of the volume's byte `offset`, where a sector of this segment begins, and what
    /// the cipher makes of a sector of zeros there. A cipher with tags makes nothing of one.
    fn sample(&self, offset: u64) -> Option<((usize, u64), usize, Vec<u8>)> {
        let (cipher, first) = self.cipher(offset)?;
        let mut sector = vec![0; cipher.sector_size().bytes()];
        if cipher.tag_size() == 0 {
            cipher.decrypt(first, sector.as_mut_slice().into());
        }
        Some((self.lower(offset)?, cipher.tag_size(), sector))
    }

    /// Returns the size of its sectors. The beginning and the length must be multiples of it.
    pub fn sector_size(&self) -> SectorSize {
        self.as_stored().map_or(SectorSize::S512, |stored| stored.cipher.sector_size())
    }

    /// Returns the end in the volume, in bytes.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("device", &self.device)
            .field("lower", &self.lower)
            .field("iv_offset", &self.iv_offset)
            .field("sector_size", &self.cipher.sector_size().bytes())
            .finish_non_exhaustive()
    }
}

/// An unlocked volume: segments from byte 0 on, without gaps.
#[derive(Debug, Clone)]
pub struct Volume {
    segments: Vec<Segment>,
    sector_size: SectorSize,
    allow_discards: bool,
    dispatch: DispatchFlags,
}

impl Volume {
    /// Returns a volume of the given segments.
    ///
    /// # Errors
    /// `BadLayout` without segments, when a segment is empty, does not begin at the end of the
    /// previous segment, does not begin at a multiple of its own sectors or is not a whole number
    /// of them, and when an offset wraps.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        let bad = |why: String| Error::new(ErrorKind::BadLayout, why);
        let mut end = 0u64;
        let mut sector_size = SectorSize::S512;
        for (i, segment) in segments.iter().enumerate() {
            let size = segment.sector_size();
            let sector = size.bytes() as u64;
            if segment.start != end {
                return Err(bad(format!("segment {i} begins at byte {}, not at {end}", segment.start)));
            }
            if !segment.start.is_multiple_of(sector) {
                // Otherwise a request on the volume's blocks would cut its sectors.
                return Err(bad(format!("segment {i} begins amid a sector of {sector} bytes")));
            }
            if segment.len == 0 || !segment.len.is_multiple_of(sector) {
                return Err(bad(format!("segment {i}: {} bytes are no sectors of {sector}", segment.len)));
            }
            let fits = |from: u64| from.checked_add(segment.len).is_some_and(|end| end <= i64::MAX as u64);
            if !fits(segment.start) || segment.as_stored().is_some_and(|stored| !fits(stored.lower)) {
                return Err(bad(format!("segment {i} ends beyond any file")));
            }
            end = segment.end();
            sector_size = sector_size.max(size);
        }
        if segments.is_empty() {
            return Err(bad("the volume has no segment".into()));
        }
        Ok(Self { segments, sector_size, allow_discards: false, dispatch: DispatchFlags::default() })
    }

    /// Returns a volume of the first `size` bytes of a device, unchanged.
    ///
    /// # Errors
    /// The kinds of [`Volume::new`].
    pub fn as_it_lies(size: u64) -> Result<Self> {
        Self::new(vec![Segment::stored(0, size, 0, 0, cipher_parameters::null(SectorSize::S512)?)])
    }

    /// Returns the same volume, with or without discards passed to the lower device.
    ///
    /// Off by default as in dm-crypt: discards show which parts of the disk are in use.
    #[must_use]
    pub fn with_discards(mut self, allowed: bool) -> Self {
        self.allow_discards = allowed;
        self
    }

    /// Returns true when discards pass to the lower device.
    pub fn allow_discards(&self) -> bool {
        self.allow_discards
    }

    /// Returns the same volume, with the dispatch flags of its header or table.
    #[must_use]
    pub fn with_dispatch(mut self, flags: DispatchFlags) -> Self {
        self.dispatch = flags;
        self
    }

    /// Returns the dispatch flags of its header or table.
    pub fn dispatch(&self) -> DispatchFlags {
        self.dispatch
    }

    /// Returns the same volume with another size: its last segment is longer, or shorter.
    ///
    /// # Errors
    /// `BadLayout` when no byte of that segment would be left, when the size is no whole number of
    /// the volume's sectors, and when the segment would overlap another segment's bytes.
    pub fn resized(&self, size: u64) -> Result<Self> {
        let bad = |why: String| Err(Error::new(ErrorKind::BadLayout, why));
        let sector = self.sector_size.bytes();
        if !size.is_multiple_of(sector as u64) {
            return bad(format!("{size} bytes are no whole number of {sector}-byte sectors"));
        }
        let mut segments = self.segments.clone();
        let Some(last) = segments.pop() else { return Ok(self.clone()) };
        let Some(len) = size.checked_sub(last.start).filter(|len| *len > 0) else {
            return bad(format!("only its last segment can change, which begins at byte {}", last.start));
        };
        let last = Segment { len, ..last };
        let place = |segment: &Segment| {
            let stored = segment.as_stored()?;
            Some((stored.device, stored.lower, stored.lower.saturating_add(segment.len)))
        };
        let old_end = |stored: &Stored| stored.lower.saturating_add(self.size() - last.start);
        if let (Some((device, _, end)), Some(from)) = (place(&last), last.as_stored().map(old_end))
            && let Some((_, other, _)) = segments
                .iter()
                .filter_map(place)
                .find(|(of, begins, ends)| *of == device && from < end && *begins < end && *ends > from)
        {
            return bad(format!(
                "it would come to lie on another segment, which begins at byte {other} of the device"
            ));
        }
        segments.push(last);
        let volume = Self::new(segments)?.with_discards(self.allow_discards);
        Ok(volume.with_dispatch(self.dispatch))
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end)
    }

    /// Returns the largest sector size of all segments, the alignment of requests.
    pub fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    /// Returns the segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the number of the segment with the byte `offset`, or `None` beyond the end.
    pub fn segment_index(&self, offset: u64) -> Option<usize> {
        let after = self.segments.partition_point(|s| s.start <= offset);
        after.checked_sub(1).filter(|&i| offset < self.segments[i].end())
    }

    /// True when both volumes find the same bytes at the same places of their devices and decrypt
    /// them alike. Keys and modes are compared by what they make of one sector of each segment.
    pub fn is_stored_as(&self, other: &Self) -> bool {
        let of = |volume: &Self, start| volume.segment_index(start).map(|i| volume.segments[i].sample(start));
        let mut starts = self.segments.iter().chain(&other.segments).map(|segment| segment.start);
        self.size() == other.size() && starts.all(|start| of(self, start) == of(other, start))
    }
}

/// Returns the number of bytes from `offset` on that a segment covers: `size`, or the rest of a
/// device of `data_size` bytes.
pub(crate) fn data_length(
    data_size: u64,
    offset: u64,
    size: Option<u64>,
    sector_size: SectorSize,
) -> Result<u64> {
    let small = |why: String| Err(Error::new(ErrorKind::TooSmall, why));
    let Some(room) = data_size.checked_sub(offset).filter(|&room| room > 0) else {
        return small(format!("the data begins at byte {offset}, but its device ends at byte {data_size}"));
    };
    match size {
        Some(size) if size > room => small(format!(
            "the data ends at byte {}, but its device at byte {data_size}; it was cut off",
            offset.saturating_add(size)
        )),
        Some(size) => Ok(size),
        None => {
            // Whole sectors of 512 bytes, as on a block device.
            let room = room & !511;
            let unit = sector_size.bytes() as u64;
            if room == 0 || !room.is_multiple_of(unit) {
                let context = format!("{room} bytes of data are no whole number of {unit}-byte sectors");
                return Err(Error::new(ErrorKind::BadLayout, format!("{context}; resize the image")));
            }
            Ok(room)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underseal_cipher::Key;

    fn segment(start: u64, len: u64, lower: u64, sector: u32) -> Segment {
        let (spec, key) = ("cipher_null-ecb".parse().unwrap(), Key::new(&[]).unwrap());
        let cipher = underseal_cipher::build(&spec, &key, SectorSize::new(sector).unwrap()).unwrap();
        Segment::stored(start, len, lower, 8, cipher)
    }

    #[test]
    fn segments_that_do_not_fit_together_are_refused() {
        for (why, segments) in [
            ("none", vec![]),
            ("not from 0", vec![segment(512, 512, 0, 512)]),
            ("empty", vec![segment(0, 0, 0, 512)]),
            ("no whole sectors", vec![segment(0, 1000, 0, 512)]),
            ("amid a sector", vec![segment(0, 512, 0, 512), segment(512, 4096, 512, 4096)]),
            ("a gap", vec![segment(0, 512, 0, 512), segment(1024, 512, 512, 512)]),
            ("an overlap", vec![segment(0, 1024, 0, 512), segment(512, 512, 1024, 512)]),
            ("beyond any file", vec![segment(0, 512, i64::MAX as u64 & !511, 512)]),
            ("wraps", vec![segment(0, 512, !511, 512)]),
        ] {
            assert_eq!(Volume::new(segments).unwrap_err().kind(), ErrorKind::BadLayout, "{why}");
        }
    }

    #[test]
    fn only_the_last_segment_gets_another_size() {
        let volume = Volume::new(vec![segment(0, 4096, 1 << 20, 512), segment(4096, 8192, 0, 4096)]).unwrap();
        let volume = volume.with_discards(true);
        for size in [8192, 12288, 1 << 20] {
            let resized = volume.resized(size).unwrap();
            assert_eq!((resized.size(), resized.segments()[0].len), (size, 4096));
            assert!(resized.allow_discards());
        }
        for (size, why) in [
            (0, "last segment"),
            (4096, "last segment"),
            (8192 + 512, "4096-byte sectors"),
            (4096 + (1 << 20) + 4096, "lie on another segment"),
            (u64::MAX / 4096 * 4096, "lie on another segment"),
        ] {
            let error = volume.resized(size).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadLayout);
            assert!(error.to_string().contains(why), "{size}: {error}");
        }
    }

    #[test]
    fn every_byte_is_found_in_its_segment() {
        let volume =
            Volume::new(vec![segment(0, 4096, 1 << 20, 512), segment(4096, 8192, 512, 4096)]).unwrap();
        assert_eq!((volume.size(), volume.sector_size()), (12288, SectorSize::S4096));
        for (offset, lower, sector) in
            [(0, 1 << 20, 8), (4095, (1 << 20) + 4095, 15), (4096, 512, 8), (8192, 4608, 16)]
        {
            let found = &volume.segments()[volume.segment_index(offset).unwrap()];
            assert_eq!(found.lower(offset), Some((0, lower)), "{offset}");
            assert_eq!(found.cipher(offset).map(|(_, number)| number), Some(sector), "{offset}");
        }
        assert!(volume.segment_index(12288).is_none());
    }
}
