//! Segments: which bytes of the logical volume lie where.

use std::ops::Range;

use super::header::Header;
use super::metadata::{Blocks, Found, HEAD, kind};
use crate::fields::{overlap, range};
use crate::{Error, ErrorKind, Result};

/// Where a list of segments or bases begins: its length, and 4 bytes, are before it.
const LIST: usize = HEAD + 8;
/// Bytes of an entry of each.
const SEGMENT: usize = 40;
const BASE: usize = 16;
/// Numbers of blocks have 48 bits.
const NUMBER: u64 = 0xffff_ffff_ffff;

/// A run of the logical volume, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The physical volume's number, and the place there.
    pub(super) device: usize,
    pub(super) lower: u64,
}

/// The pieces of a logical volume of `size` bytes, in order and without a gap.
///
/// Returns `BadHeader` when no block's segments cover the volume once, or segments overlap each
/// other or metadata, `TooSmall` for segments beyond a device, and `Unsupported` for several bases.
pub(super) fn pieces(blocks: &Blocks, size: u64, block: u64) -> Result<Vec<Piece>> {
    let bad = |why: &str| Error::new(ErrorKind::BadHeader, why);
    let base = base(blocks)?;
    let lists = blocks.of(kind::SEGMENTS);
    let newest = lists.first().ok_or_else(|| bad("the metadata hold no segments"))?;
    // The newest block, or where it holds a part only, each block's newest state.
    let whole = parse(newest, base, block).and_then(|pieces| covering(pieces, size));
    if let Ok(pieces) = whole {
        return Ok(pieces);
    }
    let mut all = Vec::new();
    for list in &lists {
        all.extend(parse(list, base, block)?);
    }
    covering(all, size)
}

/// The byte from which block numbers count.
fn base(blocks: &Blocks) -> Result<Option<(u64, usize)>> {
    let Some(found) = blocks.of(kind::BASE).into_iter().next() else { return Ok(None) };
    let fields = found.fields();
    match fields.le32(HEAD)? {
        0 => Ok(None),
        1 => Ok(Some((fields.le64(LIST + 8)? & NUMBER, fields.le16(LIST + BASE - 2)?.into()))),
        count => {
            let context = format!("a volume whose segments count from {count} places");
            Err(Error::new(ErrorKind::Unsupported, context))
        }
    }
}

fn parse(found: &Found, base: Option<(u64, usize)>, block: u64) -> Result<Vec<Piece>> {
    let bad = || Error::new(ErrorKind::BadHeader, "a segment beyond any device");
    let fields = found.fields();
    let count = usize::try_from(fields.le32(HEAD)?).unwrap_or(usize::MAX);
    // Before anything is allocated for them.
    let list = count.checked_mul(SEGMENT).ok_or_else(bad)?;
    let list = fields.bytes(LIST, list)?;
    let mut pieces = Vec::with_capacity(count);
    for entry in list.chunks_exact(SEGMENT) {
        let entry = crate::fields::Fields(entry);
        let bytes = |blocks: u64| blocks.checked_mul(block).ok_or_else(bad);
        let (from, device) = base.unwrap_or((0, entry.le16(38)?.into()));
        pieces.push(Piece {
            start: bytes(entry.le64(8)?)?,
            len: bytes(entry.le32(16)?.into())?,
            device,
            lower: bytes((entry.le64(32)? & NUMBER).checked_add(from).ok_or_else(bad)?)?,
        });
    }
    Ok(pieces)
}

/// The pieces in order, cut to the volume's size.
fn covering(mut pieces: Vec<Piece>, size: u64) -> Result<Vec<Piece>> {
    let bad = |why: String| Error::new(ErrorKind::BadHeader, why);
    pieces.retain(|piece| piece.len > 0);
    pieces.sort_by_key(|piece| piece.start);
    let mut end = 0u64;
    for piece in &mut pieces {
        if piece.start != end {
            return Err(bad(format!(
                "a segment begins at byte {}, where the one before ends at {end}",
                piece.start
            )));
        }
        piece.len = piece.len.min(size - end);
        end += piece.len;
        if end == size {
            break;
        }
    }
    if end != size || size == 0 {
        return Err(bad(format!("segments of {end} bytes in a volume of {size}")));
    }
    pieces.retain(|piece| piece.start < size);
    Ok(pieces)
}

/// Refuses pieces that overlap each other, headers, labels or metadata.
///
/// Returns `BadHeader` or `TooSmall`.
pub(super) fn check_places(
    pieces: &[Piece],
    devices: &[Header],
    metadata: &[(usize, Range<u64>)],
) -> Result<()> {
    let bad = |why: String| Err(Error::new(ErrorKind::BadHeader, why));
    let mut taken: Vec<(usize, Range<u64>)> = metadata.to_vec();
    for (device, header) in devices.iter().enumerate() {
        taken.push((device, 0..512));
        taken.push((device, header.size.saturating_sub(512)..header.size));
        for label in &header.labels {
            let start = label.saturating_mul(header.block);
            taken.push((device, start..start.saturating_add(header.metadata.into())));
        }
    }
    let mut sorted = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let Some(header) = devices.get(piece.device) else {
            return bad(format!("a segment on physical volume {}, which is not there", piece.device));
        };
        let place = range("segment", piece.lower, piece.len, header.size)?;
        if taken.iter().any(|(device, range)| *device == piece.device && overlap(range, &place)) {
            return bad(format!("a segment lies on metadata, at byte {}", piece.lower));
        }
        sorted.push((piece.device, place));
    }
    sorted.sort_by_key(|(device, place)| (*device, place.start));
    let pair = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0 && overlap(&pair[0].1, &pair[1].1));
    pair.map_or(Ok(()), |pair| bad(format!("two segments lie on each other, at byte {}", pair[1].1.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64, len: u64) -> Piece {
        Piece { start, len, device: 0, lower: 4096 + start }
    }

    #[test]
    fn segments_cover_the_volume_once() {
        let lens = |pieces: Vec<Piece>, size| {
            covering(pieces, size).map(|pieces| pieces.iter().map(|piece| piece.len).collect::<Vec<_>>()).ok()
        };
        assert_eq!(lens(vec![piece(4096, 8192), piece(0, 4096)], 8192), Some(vec![4096, 4096]));
        assert_eq!(lens(vec![piece(0, 4096), piece(4096, 4096)], 4096), Some(vec![4096]));
        assert_eq!(lens(vec![piece(0, 0), piece(0, 4096)], 4096), Some(vec![4096]));
        assert_eq!(lens(vec![piece(0, 4096), piece(0, 4096)], 8192), None);
        assert_eq!(lens(vec![piece(0, 4096), piece(8192, 4096)], 12288), None);
        assert_eq!(lens(vec![piece(0, 4096)], 8192), None);
        assert_eq!(lens(vec![piece(0, 4096)], 0), None);
        assert_eq!(lens(Vec::new(), 4096), None);
    }
}
