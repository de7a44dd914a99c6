//! Zones of a volume on a zoned device: reports of them, and where each is written next.
//!
//! What is appended to a zone is encrypted for the place where it will lie, so its place must be
//! known before. The one queue of such a device gives out places, starting from what the device
//! says of a zone, and the data path keeps writes to one zone in their order. After a failure the
//! device is asked again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use underseal_datapath::{Mapping, Zone, ZoneAction};

use super::request::ZONE;

/// Where zones are written next.
pub(super) struct Pointers {
    mapping: Arc<Mapping>,
    /// A zone's length in bytes; 0 where there are none.
    zone: u64,
    /// By a zone's first byte: where it is written next, and its end. Only zones that are appended
    /// to.
    next: HashMap<u64, (u64, u64)>,
}

impl Pointers {
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        let zone = mapping.zones().map_or(0, |zones| zones.size);
        Self { mapping, zone, next: HashMap::new() }
    }

    /// Gives out the next `len` bytes of the zone that `offset` lies in.
    ///
    /// # Errors
    /// `EIO` when the zone has no room for them, as a disk would say; the device's.
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

    /// Notes a write at a place of its own.
    pub(super) fn written(&mut self, offset: u64, len: u64) {
        let start = self.start_of(offset).unwrap_or(0);
        if let Some((next, _)) = self.next.get_mut(&start) {
            *next = (*next).max(offset.saturating_add(len));
        }
    }

    /// The zone may be written elsewhere next than was thought.
    pub(super) fn forget(&mut self, offset: u64) {
        if let Some(start) = self.start_of(offset) {
            self.next.remove(&start);
        }
    }

    /// Does something to the zone at `offset`, or to all that can be written in sequence only.
    ///
    /// # Errors
    /// The device's.
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

    /// Tells of `count` zones from `offset` on; what is not there is left zero.
    ///
    /// # Errors
    /// The device's.
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

/// A zone as `struct blk_zone` (linux/blkzoned.h), in the kernel's sectors.
fn put(zone: &Zone, to: &mut [u8]) {
    to[..8].copy_from_slice(&(zone.start / 512).to_ne_bytes());
    to[8..16].copy_from_slice(&(zone.len / 512).to_ne_bytes());
    to[16..24].copy_from_slice(&(zone.pointer / 512).to_ne_bytes());
    to[24] = zone.kind;
    to[25] = zone.condition;
    to[32..40].copy_from_slice(&(zone.capacity / 512).to_ne_bytes());
}
