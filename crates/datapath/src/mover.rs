//! Somebody who rewrites the volume under its requests: encrypts it anew, or moves it.
//!
//! ```text
//!   Mover::new    every request takes its sectors' lock from now on; those that began without are waited for
//!     claim       a range is the mover's alone, when the requests in it are over; those that come wait, in order
//!       relay     what lies in the range is set anew: requests that were waiting run under that
//!     drop        the range is everybody's again
//!   drop          requests take no lock any more, where the cipher wants none
//! ```
//!
//! While a mover is there nobody else changes size, place or key of the volume. Who suspends the
//! volume comes first: the mover brings the range that it has to an end, and gets no other until
//! the volume goes on.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::locks::{Claimant, LockOutcome};
use crate::post::{QueueInbox, QueueMessage};
use crate::{Error, ErrorKind, Mapping, Result};

/// A mover of a volume. It is not for a thread that has a queue: it waits for them.
pub struct RangeMover {
    mapping: Arc<Mapping>,
}

impl RangeMover {
    /// Comes to a volume: what runs there takes locks from now on.
    ///
    /// # Errors
    /// `Busy` when requests that began before do not end within `limit`, while there is another
    /// mover, and while the volume is suspended. `Unsupported` for a volume that keeps something
    /// beside its sectors.
    pub fn new(mapping: Arc<Mapping>, limit: Duration) -> Result<Self> {
        if mapping.has_tags() {
            let context = "a volume that keeps tags beside its sectors is not rewritten in place";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        mapping.control().mover_comes(limit)?;
        Ok(Self { mapping })
    }

    /// Claims a range of bytes for itself: no request reads or writes there until it is dropped.
    /// However long it is, it costs the same. While the volume is suspended this waits, and is in
    /// nobody's way.
    ///
    /// # Errors
    /// `Busy` when the requests that are in it, or came before, do not end within `limit`, or the
    /// volume stays suspended.
    pub fn claim(&self, range: Range<u64>, limit: Duration) -> Result<RangeGuard<'_>> {
        let (control, locks) = (self.mapping.control(), self.mapping.locks());
        let end = Instant::now() + limit;
        loop {
            let Some(turn) = control.line_up(end) else {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("the volume is suspended, for {limit:?} now"),
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

/// A range that is a mover's alone.
pub struct RangeGuard<'m>(GuardedRange<'m>);

impl RangeGuard<'_> {
    /// The range, in bytes of the volume.
    pub fn range(&self) -> Range<u64> {
        self.0.range.clone()
    }

    /// Sets what the range is made of: `volume` may lie elsewhere there, and under other ciphers
    /// and keys; everywhere else it is as it was, under the very ciphers of the
    /// [volume](Mapping::volume) that it was made of. The data is moved already, and is on stable
    /// storage if it has to be. Requests elsewhere that are in flight end under the volume that
    /// they began under; nobody waits.
    ///
    /// # Errors
    /// `Layout` when it differs elsewhere; `NoKey` while the volume's key is wiped.
    pub fn relay(&self, volume: Volume) -> Result<()> {
        self.0.mapping.relay(volume, &self.0.range)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.0.mapping.control().leaves();
    }
}

/// A range that is a mover's, or its place in the line for it.
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

/// Somebody with a place in the line for sectors.
#[derive(Clone)]
pub(crate) enum LockWaiter {
    /// A queue's request, by its slot.
    Request(Arc<QueueInbox>, u32),
    Mover(Arc<Turn>),
}

impl PartialEq for LockWaiter {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Request(post, slot), Self::Request(other, of)) => slot == of && Arc::ptr_eq(post, other),
            (Self::Mover(turn), Self::Mover(other)) => Arc::ptr_eq(turn, other),
            _ => false,
        }
    }
}

impl Claimant for LockWaiter {
    fn granted(&self) {
        match self {
            Self::Request(post, slot) => post.send(QueueMessage::Granted(*slot)),
            Self::Mover(turn) => turn.comes(),
        }
    }
}

/// What a mover waits for.
#[derive(Default)]
pub(crate) struct Turn {
    told: Mutex<Option<WakeReason>>,
    is_told: Condvar,
}

/// What ends its waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    Come,
    /// Somebody suspends the volume.
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

    /// What is said first holds.
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
