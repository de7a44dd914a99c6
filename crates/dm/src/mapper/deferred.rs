//! Removals that wait for a device's last user.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::Mapper;
use crate::registry::Entry;
use crate::{Error, Result};

/// The time between two checks of such a device.
const INTERVAL: Duration = Duration::from_millis(200);

impl Mapper {
    /// Removes a device after its last close, unless that is cancelled.
    pub(super) fn defer(&self, entry: Entry) -> Result<()> {
        if entry.device.snapshot().deferred {
            return Ok(());
        }
        entry.device.defer(true)?;
        let this = self.clone();
        let wait = move || {
            while entry.device.snapshot().deferred {
                thread::sleep(INTERVAL);
                match this.take_away(&entry) {
                    Err(e) if e.errno() == Errno::BUSY => {}
                    Err(e) if e.errno() == Errno::NXIO => return,
                    Err(e) => return log::error!("deferred removal: {e}"),
                    Ok(()) => return,
                }
            }
        };
        let began = thread::Builder::new().name("deferred".into()).spawn(wait);
        began.map(drop).map_err(|e| Error::system("no thread for a deferred removal", &e))
    }

    /// Removes the devices whose removal was deferred and that are not in use any more.
    pub(super) fn remove_deferred(&self) {
        let mut deferred = self.0.registry.all();
        deferred.retain(|entry| entry.device.snapshot().deferred);
        for entry in deferred {
            // The thread that has it may hang with the device.
            let Some(naming) = entry.device.try_naming() else { continue };
            match self.take_away_named(&entry, naming) {
                // The thread that waits for the last user goes on.
                Err(e) if matches!(e.errno(), Errno::BUSY | Errno::NXIO) => {}
                Err(e) => log::error!("deferred removal: {e}"),
                Ok(()) => self.remove_deferred(),
            }
        }
    }
}
