//! The zones of a volume that covers whole zones of one device in a row.

use std::io;

use rustix::io::Errno;
use underseal_device::{Device, Zone, ZoneAction, ZoneControl, ZoneLimits, Zones};

use super::Mapping;
use crate::layout::SegmentPlace;

impl Mapping {
    /// The zones of the volume, if it has any.
    pub fn zones(&self) -> Option<Zones> {
        let (device, lower) = self.zoned()?;
        let zones = device.geometry().zones?;
        let before = u32::try_from(lower / zones.size).unwrap_or(u32::MAX);
        Some(Zones { conventional: zones.conventional.saturating_sub(before), ..zones })
    }

    /// The limits on zones in use at a time.
    pub fn zone_limits(&self) -> ZoneLimits {
        self.zone_control().map_or_else(ZoneLimits::default, |(zones, _)| zones.zone_limits())
    }

    /// Returns the current state of up to `most` zones from `offset` on, none beyond the end. Asks
    /// the device and waits for it.
    ///
    /// # Errors
    /// The system's; `ENOTTY` for a volume without zones.
    pub fn report_zones(&self, offset: u64, most: usize) -> io::Result<Vec<Zone>> {
        let (control, lower) = self.zone_control().ok_or_else(without)?;
        if offset >= self.size() {
            return Ok(Vec::new());
        }
        let mut zones = control.report_zones(lower + offset, most)?;
        zones.retain(|zone| zone.start >= lower && zone.start - lower < self.size());
        for zone in &mut zones {
            zone.start -= lower;
            zone.pointer = zone.pointer.saturating_sub(lower);
            zone.len = zone.len.min(self.size() - zone.start);
            zone.capacity = zone.capacity.min(zone.len);
        }
        Ok(zones)
    }

    /// Applies an action to the zones of a range, and waits for it.
    ///
    /// # Errors
    /// `EROFS`; `EINVAL` beyond the end; the system's.
    pub fn act_on_zones(&self, action: ZoneAction, offset: u64, len: u64) -> io::Result<()> {
        let (control, lower) = self.zone_control().ok_or_else(without)?;
        if self.read_only() {
            return Err(Errno::ROFS.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(Errno::INVAL.into());
        }
        control.act_on_zones(action, lower + offset, len)
    }

    fn zone_control(&self) -> Option<(&dyn ZoneControl, u64)> {
        self.zoned().and_then(|(device, lower)| Some((device.zone_control()?, lower)))
    }

    /// The volume's only device, and the volume's first byte on it.
    fn zoned(&self) -> Option<(&dyn Device, u64)> {
        let layout = self.control.settings().layout;
        let [(_, SegmentPlace::Stored { device, lower, .. })] = layout.lies[..] else { return None };
        let device = &**self.devices.get(device)?;
        let zone = device.geometry().zones?.size;
        lower.is_multiple_of(zone).then_some((device, lower))
    }
}

fn without() -> io::Error {
    Errno::NOTTY.into()
}
