//! Where a volume's bytes lie: what of it is set, and can be set otherwise while it runs.

use std::ops::Range;

use underseal_cipher::SectorSize;
use underseal_device::Device;
use underseal_volume::{Segment, SegmentKind, Volume};

use crate::{Error, ErrorKind, Result};

/// A volume without its keys.
pub(crate) struct Layout {
    pub(crate) size: u64,
    /// Zeros below are zeros above everywhere.
    pub(crate) is_null: bool,
    /// A cipher spreads each byte over all of its sector.
    pub(crate) spreads: bool,
    pub(crate) lies: Vec<Lies>,
}

/// Where a segment lies, and what its cipher allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lies {
    start: u64,
    len: u64,
    pub(crate) kind: SegmentKind,
    pub(crate) device: usize,
    pub(crate) lower: u64,
    sector: SectorSize,
    is_null: bool,
    is_local: bool,
}

impl Layout {
    pub(crate) fn of(volume: &Volume) -> Self {
        let lies = volume.segments().iter().map(|s| Lies {
            start: s.start,
            len: s.len,
            kind: s.kind,
            device: s.device,
            lower: s.lower,
            sector: s.cipher.sector_size(),
            is_null: s.cipher.is_null(),
            is_local: s.cipher.is_local(),
        });
        let lies: Vec<Lies> = lies.collect();
        Self {
            size: volume.size(),
            is_null: lies.iter().all(|lies| lies.is_null),
            spreads: lies.iter().any(|lies| lies.kind == SegmentKind::Stored && !lies.is_local),
            lies,
        }
    }

    /// True when every byte that both have, outside of a range, lies at the same place under a cipher of the same kind.
    pub(crate) fn agrees(&self, other: &Self, outside: &Range<u64>) -> bool {
        let end = self.size.min(other.size);
        let bounds = self.lies.iter().chain(&other.lies).map(|lies| lies.start).chain([outside.end]);
        let compared = bounds.filter(|at| *at < end && !outside.contains(at));
        compared.into_iter().all(|at| self.at(at) == other.at(at))
    }

    /// What begins at, or goes on at a byte.
    fn at(&self, at: u64) -> Option<Lies> {
        let after = self.lies.partition_point(|lies| lies.start <= at);
        let lies = *self.lies.get(after.checked_sub(1)?)?;
        let lower = lies.lower.wrapping_add(at - lies.start);
        // How far it goes from there shows at the next bound.
        Some(Lies { start: at, len: 0, lower, ..lies })
    }
}

/// Whether a volume fits on its devices.
///
/// # Errors
/// `Layout`.
pub(crate) fn check<'d>(volume: &Volume, device: impl Fn(usize) -> Option<&'d dyn Device>) -> Result<()> {
    for segment in volume.segments().iter().filter(|s| s.kind == SegmentKind::Stored) {
        let Some(device) = device(segment.device) else {
            let context = format!("the volume lies on {} devices or more", segment.device + 1);
            return Err(Error::new(ErrorKind::Layout, context));
        };
        fits(segment, device)?;
        if segment.cipher.tag_size() > 0 {
            let context = "the cipher keeps a tag for each sector, and there is no place for them";
            return Err(Error::new(ErrorKind::Layout, context));
        }
    }
    Ok(())
}

fn fits(segment: &Segment, device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let bad = |why: String| Err(Error::new(ErrorKind::Layout, format!("{}: {why}", device.name())));
    let end = segment.lower + segment.len;
    if end > geometry.size {
        return bad(format!(
            "the volume ends at byte {end}, the device at {}: is it cut short?",
            geometry.size
        ));
    }
    let block = u64::from(geometry.block);
    if !segment.lower.is_multiple_of(block) || !segment.len.is_multiple_of(block) {
        return bad(format!(
            "the data at byte {} does not lie on blocks of {block} bytes, as direct I/O wants: open it without",
            segment.lower
        ));
    }
    Ok(())
}
