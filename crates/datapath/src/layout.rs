//! A volume's layout: where its bytes lie, which can change while the volume runs.

use std::ops::Range;
use std::sync::Arc;

use underseal_cipher::{SectorCipher, SectorSize};
use underseal_device::Device;
use underseal_volume::{Segment, SegmentKind, Stored, Volume};

use crate::{Error, ErrorKind, Result};

/// A volume without its keys.
pub(crate) struct Layout {
    pub(crate) size: u64,
    /// Zeros in the lower device read as zeros everywhere in the volume.
    pub(crate) is_null: bool,
    /// A cipher spreads each byte over all of its sector, or authenticates the sector as a whole.
    pub(crate) spreads: bool,
    /// Segments by their first byte in the volume.
    pub(crate) lies: Vec<(u64, SegmentPlace)>,
}

/// Where a segment lies, and which requests its cipher allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentPlace {
    Stored { device: usize, lower: u64, sector: SectorSize, is_null: bool, is_local: bool, tags: usize },
    Zero,
    Error,
}

impl SegmentPlace {
    fn of(segment: &Segment) -> Self {
        match &segment.kind {
            SegmentKind::Stored(Stored { device, lower, cipher, .. }) => Self::Stored {
                device: *device,
                lower: *lower,
                sector: cipher.sector_size(),
                is_null: cipher.is_null(),
                is_local: cipher.is_local(),
                tags: cipher.tag_size(),
            },
            SegmentKind::Zero => Self::Zero,
            SegmentKind::Error => Self::Error,
        }
    }
}

impl Layout {
    pub(crate) fn of(volume: &Volume) -> Self {
        let stored = || volume.segments().iter().filter_map(Segment::as_stored);
        Self {
            size: volume.size(),
            // Zeros in the lower device come without tuples.
            is_null: stored().all(|s| s.cipher.is_null() && s.cipher.tag_size() == 0),
            // A sector with an older part does not match its tuple.
            spreads: stored().any(|s| !s.cipher.is_local() || s.cipher.tag_size() > 0),
            lies: volume.segments().iter().map(|s| (s.start, SegmentPlace::of(s))).collect(),
        }
    }

    /// True when every byte of both layouts, outside of a range, lies at the same place under a
    /// cipher of the same kind.
    pub(crate) fn agrees(&self, other: &Self, outside: &Range<u64>) -> bool {
        let end = self.size.min(other.size);
        let bounds = self.lies.iter().chain(&other.lies).map(|(start, _)| *start).chain([outside.end]);
        let compared = bounds.filter(|at| *at < end && !outside.contains(at));
        compared.into_iter().all(|at| self.at(at) == other.at(at))
    }

    /// The segment at a byte, as seen from there.
    fn at(&self, at: u64) -> Option<SegmentPlace> {
        let after = self.lies.partition_point(|(start, _)| *start <= at);
        // The segment's length needs no comparison: the next bound shows it.
        let (start, mut lies) = *self.lies.get(after.checked_sub(1)?)?;
        if let SegmentPlace::Stored { lower, .. } = &mut lies {
            *lower = lower.wrapping_add(at - start);
        }
        Some(lies)
    }
}

/// True when every byte of both volumes, outside of a range, is under the very same cipher object
/// with the same sector number: keys cannot be compared in another way.
pub(crate) fn share_keys(now: &Volume, next: &Volume, outside: &Range<u64>) -> bool {
    let end = now.size().min(next.size());
    let starts = [now, next].into_iter().flat_map(Volume::segments).map(|segment| segment.start);
    let compared = starts.chain([outside.end]).filter(|at| *at < end && !outside.contains(at));
    fn cipher(volume: &Volume, at: u64) -> Option<(&Arc<dyn SectorCipher>, u64)> {
        volume.segments()[volume.segment_index(at)?].cipher(at)
    }
    compared.into_iter().all(|at| match (cipher(now, at), cipher(next, at)) {
        (Some((a, first)), Some((b, second))) => Arc::ptr_eq(a, b) && first == second,
        (a, b) => a.is_none() && b.is_none(),
    })
}

/// Where a volume ends whose last segment takes all of its device, as a block device would show the
/// size: whole sectors of 512 bytes.
pub(crate) fn end_on(last: &Segment, device: &dyn Device) -> u64 {
    let lower = last.as_stored().map_or(0, |stored| stored.lower);
    last.start.saturating_add(device.geometry().size.saturating_sub(lower) & !511)
}

/// Tells each device where its last byte in use is.
pub(crate) fn tell_needs(volume: &Volume, devices: &[Arc<dyn Device>]) {
    for device in devices {
        let stored = volume.segments().iter().filter_map(|segment| Some((segment.as_stored()?, segment.len)));
        let is_on = |number: usize| devices.get(number).is_some_and(|other| Arc::ptr_eq(other, device));
        let ends = stored.filter(|(stored, _)| is_on(stored.device)).map(|(stored, len)| stored.lower + len);
        ends.max().into_iter().for_each(|end| device.need(end));
    }
}

/// Checks that a volume fits on its devices. Returns `Layout` where it does not.
pub(crate) fn check<'d>(volume: &Volume, device: impl Fn(usize) -> Option<&'d dyn Device>) -> Result<()> {
    for (stored, len) in volume.segments().iter().filter_map(|s| Some((s.as_stored()?, s.len))) {
        let Some(device) = device(stored.device) else {
            let context = format!("the volume lies on {} devices or more", stored.device + 1);
            return Err(Error::new(ErrorKind::Layout, context));
        };
        fits(stored.lower, len, device)?;
        takes_tags(&*stored.cipher, device)?;
    }
    Ok(())
}

/// Checks that the devices take memory that is aligned to sectors: requests are divided at any
/// sector, and their memory with them. Returns `Layout` where one does not.
pub(crate) fn check_memory(devices: &[Arc<dyn Device>], sector: u32) -> Result<()> {
    let Some(device) = devices.iter().find(|device| device.geometry().memory_alignment > sector) else {
        return Ok(());
    };
    let context = format!(
        "{} takes memory that is aligned to {} bytes, and the volume has sectors of {sector}",
        device.name(),
        device.geometry().memory_alignment,
    );
    Err(Error::new(ErrorKind::Layout, context))
}

fn fits(lower: u64, len: u64, device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let bad = |why: String| Err(Error::new(ErrorKind::Layout, format!("{}: {why}", device.name())));
    let end = lower + len;
    if end > geometry.size {
        return bad(format!(
            "the volume ends at byte {end}, the device at {}: is it cut short?",
            geometry.size
        ));
    }
    let block = u64::from(geometry.block);
    if !lower.is_multiple_of(block) || !len.is_multiple_of(block) {
        return bad(format!(
            "the data at byte {lower} does not lie on blocks of {block} bytes, as direct I/O needs: open it without direct I/O"
        ));
    }
    Ok(())
}

/// Checks that the device stores as many bytes beside each block as the cipher needs for each
/// sector.
fn takes_tags(cipher: &dyn SectorCipher, device: &dyn Device) -> Result<()> {
    let (tags, sector, geometry) = (cipher.tag_size(), cipher.sector_size().bytes(), device.geometry());
    let fits = geometry.tag_size as usize == tags && geometry.block as usize == sector;
    if fits || (tags == 0 && geometry.tag_size == 0) {
        return Ok(());
    }
    let there = match geometry.tag_size {
        0 => "no place for it".into(),
        bytes => format!("place for {bytes} bytes beside each block of {}", geometry.block),
    };
    let context = format!(
        "the cipher keeps {tags} bytes beside each sector of {sector}, and {} has {there}",
        device.name()
    );
    Err(Error::new(ErrorKind::Layout, context))
}
