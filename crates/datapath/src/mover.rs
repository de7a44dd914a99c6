//! The range mover: rewrites a volume online, for example with another key.
//!
//! ```text
//!   RangeMover::new  every request takes the range lock from now on; waits for those without
//!     claim          locks a range exclusively after its requests; later ones wait, in order
//!       relay        replaces the range's layout, under which the waiting requests then run
//!     drop           releases the range
//!   drop             requests take no lock any more, unless the cipher needs it
//! ```
//!
//! While a mover exists, size, place and key of the volume cannot be changed otherwise. A
//! suspension has priority: the mover finishes the range that it holds, and gets no other until the
//! volume resumes.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::inbox::{QueueInbox, QueueMessage};
use crate::locks::{Claimant, LockOutcome};
use crate::{Error, ErrorKind, Mapping, Result};

/// The range mover of a volume. A thread that has a queue must not use it: it waits for queues.
pub struct RangeMover {
    mapping: Arc<Mapping>,
}

impl RangeMover {
    /// Becomes the mover of a volume: its requests take locks from now on.
    ///
    /// # Errors
    /// `Busy` when earlier requests do not end within `limit`, while another mover exists, and
    /// while the volume is suspended. `Unsupported` for a volume with tags.
    pub fn new(mapping: Arc<Mapping>, limit: Duration) -> Result<Self> {
        if mapping.has_tags() {
            let context = "a volume that keeps tags beside its sectors is not rewritten in place";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        mapping.control().mover_comes(limit)?;
        Ok(Self { mapping })
    }

    /// Locks a range of bytes exclusively: no request reads or writes there until the guard is
    /// dropped. The cost does not depend on the length. While the volume is suspended this waits,
    /// without delaying requests.
    ///
    /// # Errors
    /// `Busy` when earlier requests in the range do not end within `limit`, or the volume stays
    /// suspended.
    pub fn claim(&self, range: Range<u64>, limit: Duration) -> Result<RangeGuard<'_>> {
        let (control, locks) = (self.mapping.control(), self.mapping.locks());
        let end = Instant::now() + limit;
        loop {
            let Some(turn) = control.line_up(end) else {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("the volume stayed suspended for {limit:?}"),
                ));
            };
            let claimed = locks.claim(range.clone(), false, || LockWaiter::Mover(turn.clone()));
            let place = GuardedRange { mapping: &self.mapping, range: range.clone(), claimed, turn };
            let came = claimed != LockOutcome::Waits || place.turn.comes_by(end);
            if control.enters(&place.turn, came) {
                return Ok(RangeGuard(place));
            }
            if Instant::now() >= end {
                let context = format!("requests in the range did not end within {limit:?}");
                return Err(Error::new(ErrorKind::Busy, context));
            }
        }
    }
}

impl Drop for RangeMover {
    fn drop(&mut self) {
        self.mapping.control().mover_goes();
    }
}

/// A range that a mover holds exclusively.
pub struct RangeGuard<'m>(GuardedRange<'m>);

impl RangeGuard<'_> {
    /// The range, in bytes of the volume.
    pub fn range(&self) -> Range<u64> {
        self.0.range.clone()
    }

    /// Replaces the layout of the range: `volume` may lie elsewhere there, and have other ciphers
    /// and keys; outside of the range it has the very cipher objects of the
    /// [volume](Mapping::volume) that it was derived from. The caller has moved the data, and
    /// synced it if that is necessary. Requests outside of the range that are in flight end under
    /// the old volume; the call does not wait.
    ///
    /// # Errors
    /// `Layout` when the volume differs outside of the range; `NoKey` while its key is wiped.
    pub fn relay(&self, volume: Volume) -> Result<()> {
        self.0.mapping.relay(volume, &self.0.range)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.0.mapping.control().leaves();
    }
}

/// A range that a mover holds or waits for.
struct GuardedRange<'m> {
    mapping: &'m Mapping,
    range: Range<u64>,
    claimed: LockOutcome,
    turn: Arc<Turn>,
}

impl Drop for GuardedRange<'_> {
    fn drop(&mut self) {
        let locks = self.mapping.locks();
        match self.claimed {
            LockOutcome::Taken => locks.give_back(self.range.clone(), false),
            _ => locks.leave(self.range.clone(), LockWaiter::Mover(self.turn.clone())),
        }
    }
}

/// A waiter for a range lock.
#[derive(Clone)]
pub(crate) enum LockWaiter {
    /// A queue's request, by its slot.
    Request(Arc<QueueInbox>, u32),
    Mover(Arc<Turn>),
}

impl PartialEq for LockWaiter {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Request(inbox, slot), Self::Request(other, of)) => slot == of && Arc::ptr_eq(inbox, other),
            (Self::Mover(turn), Self::Mover(other)) => Arc::ptr_eq(turn, other),
            _ => false,
        }
    }
}

impl Claimant for LockWaiter {
    fn granted(&self) {
        match self {
            Self::Request(inbox, slot) => inbox.send(QueueMessage::Granted(*slot)),
            Self::Mover(turn) => turn.comes(),
        }
    }
}

/// A mover's waiting for a range.
#[derive(Default)]
pub(crate) struct Turn {
    told: Mutex<Option<WakeReason>>,
    is_told: Condvar,
}

/// The reason that ends the waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    Come,
    /// The volume is being suspended.
    Yield,
}

impl Turn {
    fn comes(&self) {
        self.tell(WakeReason::Come);
    }

    /// Ends the waiting without the range.
    pub(crate) fn yields(&self) {
        self.tell(WakeReason::Yield);
    }

    /// Sets the reason, unless one is set already.
    fn tell(&self, what: WakeReason) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.is_told.notify_one();
    }

    fn comes_by(&self, end: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        while told.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            told = self.is_told.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *told == Some(WakeReason::Come)
    }
}
