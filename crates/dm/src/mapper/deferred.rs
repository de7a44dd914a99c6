//! Removals that wait for a device's last user.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::Mapper;
use crate::registry::Entry;
use crate::{Error, Result};

/// The time between two checks of such a device.
const INTERVAL: Duration = Duration::from_millis(200);
/// The time after a removal that failed although the device was not in use.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

impl Mapper {
    /// Removes a device after its last close, unless that is cancelled.
    pub(super) fn defer(&self, entry: Entry) -> Result<()> {
        if !entry.device.defer()? {
            return Ok(());
        }
        let this = self.clone();
        let device = entry.device.clone();
        let wait = move || this.wait_for_last_user(&entry);
        let began = thread::Builder::new().name("deferred".into()).spawn(wait);
        began.map(drop).map_err(|e| {
            device.drop_deferred();
            Error::system("no thread for a deferred removal", &e)
        })
    }

    /// Tries the removal until the device is gone or the removal is cancelled.
    fn wait_for_last_user(&self, entry: &Entry) {
        let mut failure = String::new();
        let mut interval = INTERVAL;
        while entry.device.is_waited_for() {
            thread::sleep(interval);
            interval = INTERVAL;
            match self.take_away_named(entry, entry.device.naming(), true) {
                Err(e) if e.errno() == Errno::BUSY => {}
                Err(e) if e.errno() == Errno::NXIO => return,
                Err(e) => {
                    // A lower device that hangs may recover.
                    let why = e.to_string();
                    if why != failure {
                        log::error!("deferred removal, to be retried: {why}");
                        failure = why;
                    }
                    interval = AFTER_FAILURE;
                }
                Ok(()) => return,
            }
        }
    }

    /// Removes the devices whose removal was deferred and that are not in use any more.
    pub(super) fn remove_deferred(&self) {
        let mut deferred = self.0.registry.all();
        deferred.retain(|entry| entry.device.snapshot().deferred);
        for entry in deferred {
            // The thread that has it may hang with the device.
            let Some(naming) = entry.device.try_naming() else { continue };
            match self.take_away_named(&entry, naming, true) {
                // The thread that waits for the last user retries.
                Err(e) => log::debug!("deferred removal: {e}"),
                Ok(()) => self.remove_deferred(),
            }
        }
    }
}
