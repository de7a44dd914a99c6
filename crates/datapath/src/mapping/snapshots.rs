//! Requests pause while a snapshot is made below, so that it has all of each, and what was flushed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use underseal_device::Pause;

use super::Mapping;
use crate::Result;

/// How long requests in flight may take to end. Who makes the snapshot waits so long, and longer.
const LIMIT: Duration = Duration::from_secs(20);

/// A volume, as long as it is open.
struct Paused(Weak<Mapping>);

impl Mapping {
    /// Has the volume rest from now on whenever a snapshot is made of what it lies on, where a device hears of that.
    pub fn pause_for_snapshots(self: &Arc<Self>) {
        let pause: Arc<dyn Pause> = Arc::new(Paused(Arc::downgrade(self)));
        self.devices.iter().for_each(|device| device.when_snapshot(pause.clone()));
    }

    fn pause(&self) -> Result<()> {
        self.control.pause(LIMIT)?;
        let flushed = self.devices.iter().try_for_each(|device| super::flush(&**device));
        flushed.inspect_err(|_| self.control.go_on())
    }
}

impl Pause for Paused {
    fn begin(&self) -> bool {
        let Some(mapping) = self.0.upgrade() else { return false };
        match mapping.pause() {
            Ok(()) => log::info!("requests wait while a snapshot is made"),
            Err(e) => {
                log::warn!("a snapshot is not made of this volume, which does not come to rest: {e}");
                return false;
            }
        }
        true
    }

    fn end(&self) {
        if let Some(mapping) = self.0.upgrade() {
            mapping.control.go_on();
            log::info!("requests go on after a snapshot");
        }
    }
}
