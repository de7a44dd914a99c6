//! The properties of a volume that stay the same while it is open.

use std::sync::Arc;

use underseal_device::Device;
use underseal_volume::{Segment, Volume};

use crate::layout::Layout;

/// The limits of a volume and its devices for requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestLimits {
    /// The unit of the cipher and the devices, in bytes.
    pub(super) sector: u32,
    /// The unit that requests should have.
    pub(super) block: u32,
    /// The unit that requests must have.
    pub(super) least: u32,
    pub(super) preferred_block: u32,
    pub(super) read_only: bool,
    pub(super) discards: bool,
    pub(super) zoned: bool,
    pub(super) memory_alignment: u32,
    /// The largest ratio of tuples to data: bytes of tuples, and bytes of sectors that have them.
    pub(super) tags: (u64, u64),
}

impl RequestLimits {
    pub(super) fn of(volume: &Volume, devices: &[Arc<dyn Device>]) -> Self {
        let geometries = || devices.iter().map(|device| device.geometry());
        let sector = u32::try_from(volume.sector_size().bytes()).unwrap_or(u32::MAX);
        let sector = geometries().fold(sector, |block, geometry| block.max(geometry.block));
        let read_only = geometries().any(|geometry| geometry.read_only);
        Self {
            sector,
            block: sector,
            least: sector,
            preferred_block: geometries().fold(sector, |block, geometry| block.max(geometry.preferred_block)),
            read_only,
            // Discarded sectors would not match their tuples.
            discards: volume.allow_discards()
                && geometries().all(|geometry| geometry.discard)
                && most_tags(volume).0 == 0,
            zoned: geometries().any(|geometry| geometry.zones.is_some()),
            memory_alignment: geometries().fold(1, |most, geometry| most.max(geometry.memory_alignment)),
            tags: most_tags(volume),
        }
    }

    /// Where nothing is written, no cipher spreads a byte over its sector.
    pub(super) fn layout_of(&self, volume: &Volume) -> Layout {
        let layout = Layout::of(volume);
        Layout { spreads: layout.spreads && !self.read_only, ..layout }
    }
}

/// The bytes of a sector's tuple, and of the sector, in the segment with the most tuple bytes for
/// each byte of data.
fn most_tags(volume: &Volume) -> (u64, u64) {
    let stored = volume.segments().iter().filter_map(Segment::as_stored);
    let each = stored.map(|s| (s.cipher.tag_size() as u64, s.cipher.sector_size().bytes() as u64));
    each.max_by_key(|(tags, sector)| tags * 65536 / sector).filter(|(tags, _)| *tags > 0).unwrap_or((0, 1))
}
