//! The recovery of an interrupted step, before the volume is used.

use std::cell::OnceCell;
use std::ops::Range;
use std::time::{Duration, Instant};

use underseal_volume::reencrypt::{self, Claim, Foreground, Pace};

/// How long the recovery waits for a lock of another program, after the message about it.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The recovery of a step before the volume is used: no further step is begun.
#[derive(Default)]
pub(super) struct NoStep {
    /// When it first met another program's lock.
    waits_since: OnceCell<Instant>,
}

impl Foreground for NoStep {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        reencrypt::Alone.claim(range).map(|_| Box::new(reencrypt::Alone) as Box<dyn Claim>)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn waits_for_lock(&self) {
        self.waits_since.get_or_init(Instant::now);
        log::warn!("reencryption: another program holds the header's lock: waiting for it");
    }

    /// Returns true once the wait for the lock has taken too long. The recovery fails then, and is
    /// repeated later.
    fn is_stopped(&self) -> bool {
        self.waits_since.get().is_some_and(|since| since.elapsed() >= LOCK_PATIENCE)
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Stop
    }
}
