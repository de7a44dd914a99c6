//! Whether the exclusive lock is still this client's.
//!
//! The cluster drops the requests of a client whose lock was taken only while an entry of its
//! blocklist names that client: for an hour, where nothing else is set. A process that was stopped
//! for longer, or cut off from the network, would write over the new owner's data. So a client that
//! has not heard from the cluster for [`SILENCE`] asks who has the lock before it sends anything.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::library::Image;

/// The longest time for which the lock needs no proof. Another client gets the lock after half a
/// minute of silence.
const SILENCE: Duration = Duration::from_secs(20);

/// The lock's owner, which is this client.
pub(super) struct LockOwnership {
    address: String,
    /// The time of the last proof.
    proved: AtomicU64,
    /// The number of changes of the image's header that the last query covers.
    changes: AtomicU64,
}

impl LockOwnership {
    /// The owner of a lock that was taken just now.
    pub(super) fn new(image: &Image) -> Result<Self, Errno> {
        let proved = AtomicU64::new(now());
        let address = image.owner()?.ok_or(Errno::SHUTDOWN)?;
        Ok(Self { address, proved, changes: AtomicU64::new(0) })
    }

    /// Notes that the cluster has carried out a request that was sent at this time: the lock was
    /// this client's then.
    pub(super) fn was_carried_out(&self, sent: u64) {
        self.proved.fetch_max(sent, SeqCst);
    }

    /// Returns the time if the lock is this client's. Asks the cluster after a silence, and after a
    /// change of the image's header.
    ///
    /// Fails with `ESHUTDOWN` when another client has the lock, with `EROFS` when none has it, and
    /// with the errors of the query.
    pub(super) fn prove(&self, image: &Image) -> Result<u64, Errno> {
        let (now, changes) = (now(), image.changes());
        let silence = u64::try_from(SILENCE.as_millis()).unwrap_or(u64::MAX);
        let is_proved = now.saturating_sub(self.proved.load(SeqCst)) < silence;
        if is_proved && changes == self.changes.load(SeqCst) {
            return Ok(now);
        }
        match image.owner()? {
            Some(owner) if owner == self.address => {}
            Some(_) => return Err(Errno::SHUTDOWN),
            None => return Err(Errno::ROFS),
        }
        self.proved.fetch_max(now, SeqCst);
        self.changes.store(changes, SeqCst);
        Ok(now)
    }
}

/// Milliseconds of a clock that runs while the machine is suspended.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}
