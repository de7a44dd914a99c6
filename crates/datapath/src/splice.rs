//! A volume with a run of another volume in it.

use std::ops::Range;
use std::sync::Arc;

use underseal_volume::{Result, Segment, SegmentKind, Stored, Volume};

/// Returns `base` with the segments of `other` within `range`. Adjacent segments with the same
/// cipher and contiguous data become one. Returns `BadLayout` when the range cuts sectors, or is
/// not in both.
pub(crate) fn splice(base: &Volume, other: &Volume, range: Range<u64>) -> Result<Volume> {
    let pieces =
        cut(base, 0..range.start).chain(cut(other, range.clone())).chain(cut(base, range.end..base.size()));
    let mut segments: Vec<Segment> = Vec::new();
    for piece in pieces {
        match segments.last_mut().filter(|last| goes_on(last, &piece)) {
            Some(last) => last.len += piece.len,
            None => segments.push(piece),
        }
    }
    let spliced = Volume::new(segments)?.with_discards(base.allow_discards());
    Ok(spliced.with_dispatch(base.dispatch()))
}

/// The parts of the segments that lie in a range.
fn cut(volume: &Volume, range: Range<u64>) -> impl Iterator<Item = Segment> {
    volume.segments().iter().filter_map(move |segment| {
        let (start, end) = (segment.start.max(range.start), segment.end().min(range.end));
        let mut kind = segment.kind.clone();
        if let SegmentKind::Stored(stored) = &mut kind {
            let skipped = start.saturating_sub(segment.start);
            stored.lower += skipped;
            stored.iv_offset = stored.iv_offset.wrapping_add(skipped >> 9);
        }
        (start < end).then(|| Segment { start, len: end - start, kind })
    })
}

/// True when two segments can be one.
fn goes_on(first: &Segment, then: &Segment) -> bool {
    match (&first.kind, &then.kind) {
        (SegmentKind::Stored(a), SegmentKind::Stored(b)) => {
            let Stored { device, lower, iv_offset, cipher, .. } = a;
            *device == b.device
                && Arc::ptr_eq(cipher, &b.cipher)
                && lower.checked_add(first.len) == Some(b.lower)
                && iv_offset.wrapping_add(first.len >> 9) == b.iv_offset
        }
        (SegmentKind::Zero, SegmentKind::Zero) | (SegmentKind::Error, SegmentKind::Error) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use underseal_cipher::{Key, SectorCipher, SectorSize, build};

    use super::*;

    fn cipher(sector: SectorSize) -> Arc<dyn SectorCipher> {
        build(&"aes-xts-plain64".parse().unwrap(), &Key::new(&[7; 32]).unwrap(), sector).unwrap()
    }

    fn whole(cipher: &Arc<dyn SectorCipher>, lower: u64) -> Volume {
        Volume::new(vec![Segment::stored(0, 1 << 20, lower, 0, cipher.clone())]).unwrap().with_discards(true)
    }

    /// Start, length, lower offset and IV offset of each segment.
    fn shape(volume: &Volume) -> Vec<(u64, u64, u64, u64)> {
        let of = |segment: &Segment| {
            let (lower, iv) = segment.as_stored().map_or((0, 0), |s| (s.lower, s.iv_offset));
            (segment.start, segment.len, lower, iv)
        };
        volume.segments().iter().map(of).collect()
    }

    #[test]
    fn a_run_is_taken_from_the_other_with_its_place_and_number() {
        let (old, new) = (cipher(SectorSize::S512), cipher(SectorSize::S4096));
        let (old, new) = (whole(&old, 0), whole(&new, 4096));
        let spliced = splice(&old, &new, 8192..16384).unwrap();
        assert_eq!(
            shape(&spliced),
            [(0, 8192, 0, 0), (8192, 8192, 12288, 16), (16384, (1 << 20) - 16384, 16384, 32)]
        );
        assert!(spliced.allow_discards());
        assert_eq!(spliced.segments()[1].sector_size(), SectorSize::S4096);
        assert!(splice(&old, &new, 512..4608).is_err(), "it cuts sectors");
    }

    #[test]
    fn step_after_step_it_becomes_the_other_with_two_segments_at_most() {
        let (old, new) = (cipher(SectorSize::S4096), cipher(SectorSize::S4096));
        for backward in [false, true] {
            let (mut now, new) = (whole(&old, 0), whole(&new, 8192));
            for step in 0..16 {
                let start = if backward { 15 - step } else { step } << 16;
                now = splice(&now, &new, start..start + (1 << 16)).unwrap();
                assert_eq!(now.segments().len(), if step < 15 { 2 } else { 1 });
            }
            assert_eq!(shape(&now), shape(&new));
        }
    }

    #[test]
    fn what_nobody_can_read_is_nobodys() {
        let cipher = cipher(SectorSize::S4096);
        let nothing =
            Volume::new(vec![Segment { start: 0, len: 1 << 20, kind: SegmentKind::Error }]).unwrap();
        let broken = splice(&whole(&cipher, 0), &nothing, 4096..8192).unwrap();
        assert!(matches!(broken.segments()[1].kind, SegmentKind::Error));
        let mended = splice(&broken, &whole(&cipher, 0), 4096..8192).unwrap();
        assert_eq!(mended.segments().len(), 1);
    }
}
