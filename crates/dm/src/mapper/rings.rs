//! Tables that would lie on their own device by way of other devices.
//!
//! The kernel accepts them, and the first request never ends.

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::device::Snapshot;
use crate::host::Table;
use crate::registry::Registry;
use crate::{DeviceNumber, Error, Result};

/// Fails with `EINVAL` if a table for this device lies on the device. Inactive tables of other
/// devices count as live ones: both may be live soon.
pub(super) fn refuse_ring(registry: &Registry, device: DeviceNumber, table: &Table) -> Result<()> {
    let mut found = BTreeSet::new();
    // Devices, each with the device above it.
    let mut next: Vec<_> = table.deps.iter().chain(&table.beneath).map(|dep| (*dep, device)).collect();
    while let Some((number, above)) = next.pop() {
        if number == device {
            let through = if above == device { String::new() } else { format!(", by way of {above}") };
            let why = format!("{device}: a table cannot lie on its own device{through}");
            return Err(Error::new(Errno::INVAL, why));
        }
        if !found.insert(number) {
            continue;
        }
        let Some(entry) = registry.at(number) else { continue };
        let Snapshot { live, inactive, .. } = entry.device.snapshot();
        for table in live.iter().chain(&inactive) {
            next.extend(table.deps.iter().chain(&table.beneath).map(|dep| (*dep, number)));
        }
    }
    Ok(())
}
