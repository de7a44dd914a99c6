//! A volume over its lower devices.

use std::sync::Arc;

use underseal_device::{Device, Extent, Geometry};
use underseal_volume::{Segment, SegmentKind, Volume};

use crate::{Error, ErrorKind, Result};

/// A volume that is open: its segments, and the devices they lie on. Shared by all its queues.
pub struct Mapping {
    volume: Volume,
    devices: Vec<Arc<dyn Device>>,
}

/// What a range of the volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The length in bytes for which it holds.
    pub len: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// It reads as zeros. (A hole under a cipher reads as noise.)
    pub zero: bool,
}

impl Mapping {
    /// Puts a volume over a device.
    ///
    /// # Errors
    /// As [`Mapping::over`].
    pub fn new(volume: Volume, device: Arc<dyn Device>) -> Result<Self> {
        Self::over(volume, vec![device])
    }

    /// Puts a volume over its devices, in the order of the segments' numbers. One may be there twice.
    ///
    /// # Errors
    /// `Layout` when a segment lies beyond its device's end, not on its blocks, or on a device that is not there.
    pub fn over(volume: Volume, devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        for segment in volume.segments().iter().filter(|s| s.kind == SegmentKind::Stored) {
            let Some(device) = devices.get(segment.device) else {
                let context = format!("the volume lies on {} devices or more", segment.device + 1);
                return Err(Error::new(ErrorKind::Layout, context));
            };
            fits(segment, &**device)?;
        }
        Ok(Self { volume, devices })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// What offsets and lengths of requests must be multiples of: the sector size, or the device's block.
    pub fn block(&self) -> u32 {
        let sector = u32::try_from(self.volume.sector_size().bytes()).unwrap_or(u32::MAX);
        self.geometries().fold(sector, |block, geometry| block.max(geometry.block))
    }

    /// Offsets and lengths that cost nothing extra, in bytes.
    pub fn preferred_block(&self) -> u32 {
        self.geometries().fold(self.block(), |block, geometry| block.max(geometry.preferred_block))
    }

    /// True when nothing may be written.
    pub fn read_only(&self) -> bool {
        self.geometries().any(|geometry| geometry.read_only)
    }

    /// True when discards reach the devices.
    pub fn discards(&self) -> bool {
        self.volume.allow_discards() && self.geometries().all(|geometry| geometry.discard)
    }

    /// True when zeros below are zeros above everywhere, so zeroing can be faster than writing.
    pub fn is_null(&self) -> bool {
        self.volume.segments().iter().all(|s| s.cipher.is_null())
    }

    /// What the volume is made of at `offset`, for at most `len` bytes; the answer covers at least one byte.
    /// `None` beyond the end.
    pub fn status(&self, offset: u64, len: u64) -> Option<Status> {
        let segment = self.segment(self.segment_index(offset)?);
        let len = len.min(segment.end() - offset).max(1);
        let extent = match segment.kind {
            SegmentKind::Stored => self.devices[segment.device].extent(segment.lower_offset(offset), len),
            SegmentKind::Zero => Extent { len, hole: true },
            // Whoever reads there learns more than from any status.
            SegmentKind::Error => Extent { len, hole: false },
        };
        // Whole blocks only: a client reads and writes nothing smaller. A part of a block is data.
        let block = u64::from(self.block());
        let whole = extent.len / block * block;
        let (len, hole) = match (whole, extent.hole) {
            (0, _) => (block.min(len), false),
            (whole, hole) => (whole, hole),
        };
        Some(Status { len, hole, zero: hole && segment.cipher.is_null() })
    }

    /// The parts that it is made of, in order, without gaps.
    pub fn segments(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.volume.segments().iter().map(|segment| segment.start..segment.end())
    }

    pub(crate) fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    fn geometries(&self) -> impl Iterator<Item = Geometry> {
        self.devices.iter().map(|device| device.geometry())
    }

    pub(crate) fn segment(&self, index: usize) -> &Segment {
        &self.volume.segments()[index]
    }

    /// The number of the segment that holds the byte `offset`, or none beyond the end.
    pub(crate) fn segment_index(&self, offset: u64) -> Option<usize> {
        self.volume.segment_index(offset)
    }
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
