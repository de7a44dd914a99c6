//! Zones of a volume on a zoned device: reports, and write pointers.
//!
//! Data appended to a zone is encrypted for its final offset, so the offset must be known before
//! the write. The device has one queue, which allots offsets from the device's write pointer on,
//! and the data path keeps writes to one zone in their order. After a failure the device is asked
//! for its write pointer again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use underseal_datapath::{Mapping, Zone, ZoneAction};

use super::request::ZONE;

/// The write pointers of zones.
pub(super) struct Pointers {
    mapping: Arc<Mapping>,
    /// A zone's length in bytes; 0 for a device without zones.
    zone: u64,
    /// The write pointer and the end of each zone, by its first byte. Only zones with appends are
    /// here.
    next: HashMap<u64, (u64, u64)>,
}

impl Pointers {
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        let zone = mapping.zones().map_or(0, |zones| zones.size);
        Self { mapping, zone, next: HashMap::new() }
    }

    /// Allots the next `len` bytes of the zone that contains `offset`. Fails with `EIO`, as a disk
    /// does, when the zone has no room for them.
    pub(super) fn append(&mut self, offset: u64, len: u64) -> io::Result<u64> {
        let start = self.start_of(offset).ok_or(Errno::OPNOTSUPP)?;
        let (at, end) = match self.next.get(&start) {
            Some(&known) => known,
            None => {
                let zones = self.mapping.report_zones(start, 1)?;
                let zone = zones.first().ok_or(Errno::IO)?;
                (zone.pointer, zone.start.saturating_add(zone.capacity))
            }
        };
        let after = at.checked_add(len).filter(|&after| at >= start && after <= end).ok_or(Errno::IO)?;
        self.next.insert(start, (after, end));
        Ok(at)
    }

    /// Notes a write that was no append.
    pub(super) fn written(&mut self, offset: u64, len: u64) {
        let start = self.start_of(offset).unwrap_or(0);
        if let Some((next, _)) = self.next.get_mut(&start) {
            *next = (*next).max(offset.saturating_add(len));
        }
    }

    /// Forgets the zone's write pointer after a failure.
    pub(super) fn forget(&mut self, offset: u64) {
        if let Some(start) = self.start_of(offset) {
            self.next.remove(&start);
        }
    }

    /// Applies an action to the zone at `offset`, or to all sequential zones.
    pub(super) fn act(&mut self, action: ZoneAction, offset: Option<u64>) -> io::Result<()> {
        let zones = self.mapping.zones().ok_or(Errno::OPNOTSUPP)?;
        let size = self.mapping.size();
        let (start, end) = match offset.and_then(|offset| self.start_of(offset)) {
            Some(start) => (start, start.saturating_add(zones.size)),
            None => (zones.size.saturating_mul(zones.conventional.into()), size),
        };
        let end = end.min(size);
        self.next.retain(|zone, _| *zone < start || *zone >= end);
        self.mapping.act_on_zones(action, start, end.saturating_sub(start))
    }

    /// Reports `count` zones from `offset` on; the rest of the report is zero.
    pub(super) fn report(&self, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut report = vec![0; count * ZONE];
        let (mut at, mut filled) = (offset, 0);
        while filled < count {
            let zones = self.mapping.report_zones(at, count - filled)?;
            let Some(last) = zones.last() else { break };
            at = last.start.saturating_add(last.len);
            for zone in &zones {
                put(zone, &mut report[filled * ZONE..][..ZONE]);
                filled += 1;
            }
        }
        Ok(report)
    }

    fn start_of(&self, offset: u64) -> Option<u64> {
        offset.checked_div(self.zone).map(|zone| zone * self.zone)
    }
}

/// Writes a zone as `struct blk_zone` (linux/blkzoned.h), in the kernel's sectors.
fn put(zone: &Zone, to: &mut [u8]) {
    to[..8].copy_from_slice(&(zone.start / 512).to_ne_bytes());
    to[8..16].copy_from_slice(&(zone.len / 512).to_ne_bytes());
    to[16..24].copy_from_slice(&(zone.pointer / 512).to_ne_bytes());
    to[24] = zone.kind;
    to[25] = zone.condition;
    to[32..40].copy_from_slice(&(zone.capacity / 512).to_ne_bytes());
}
