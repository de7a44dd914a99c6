//! Somebody who rewrites the volume under its requests: encrypts it anew, or moves it.
//!
//! ```text
//!   Mover::new    every request takes its sectors' lock from now on; those that began without are waited for
//!     claim       a range is the mover's alone, when the requests in it are over; those that come wait, in order
//!       relay     what lies in the range is set anew: requests that were waiting run under that
//!     drop        the range is everybody's again
//!   drop          requests take no lock any more, where the cipher wants none
//! ```

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::locks::{Claimant, Claimed};
use crate::post::{Letter, Post};
use crate::{Error, ErrorKind, Mapping, Result};

/// A mover of a volume. It is not for a thread that has a queue: it waits for them.
pub struct Mover {
    mapping: Arc<Mapping>,
}

impl Mover {
    /// Comes to a volume: what runs there takes locks from now on.
    ///
    /// # Errors
    /// `Busy` when requests that began before do not end within `limit`.
    pub fn new(mapping: Arc<Mapping>, limit: Duration) -> Result<Self> {
        mapping.control().mover_comes(limit)?;
        Ok(Self { mapping })
    }

    /// Claims a range of bytes for itself: no request reads or writes there until it is dropped. However long it is, it costs
    /// the same.
    ///
    /// # Errors
    /// `Busy` when the requests that are in it, or came before, do not end within `limit`.
    pub fn claim(&self, range: Range<u64>, limit: Duration) -> Result<Exclusive<'_>> {
        let turn = Arc::new(Turn::default());
        let locks = self.mapping.locks();
        let claimed = locks.claim(range.clone(), false, || Waiting::Mover(turn.clone()));
        let claim = Exclusive { mover: self, range, claimed, turn };
        if claimed == Claimed::Waits && !claim.turn.comes_within(limit) {
            let context = format!("requests in the range did not end within {limit:?}");
            return Err(Error::new(ErrorKind::Busy, context));
        }
        Ok(claim)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.mapping.control().mover_goes();
    }
}

/// A range that is a mover's alone.
pub struct Exclusive<'m> {
    mover: &'m Mover,
    range: Range<u64>,
    claimed: Claimed,
    turn: Arc<Turn>,
}

impl Exclusive<'_> {
    /// The range, in bytes of the volume.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Sets what the range is made of: `volume` may lie elsewhere there, and under other ciphers and keys; everywhere else it
    /// is as it was, which its keys are not asked about. The data is moved already, and is on stable storage if it has to be.
    /// Requests elsewhere that are in flight end under the volume that they began under; nobody waits.
    ///
    /// # Errors
    /// `Layout` when it differs elsewhere; `NoKey` while the volume's key is wiped.
    pub fn relay(&self, volume: Volume) -> Result<()> {
        self.mover.mapping.relay(volume, &self.range)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let locks = self.mover.mapping.locks();
        match self.claimed {
            Claimed::Taken => locks.give_back(self.range.clone(), false),
            _ => locks.leave(self.range.clone(), Waiting::Mover(self.turn.clone())),
        }
    }
}

/// Somebody with a place in the line for sectors.
#[derive(Clone)]
pub(crate) enum Waiting {
    /// A queue's request, by its slot.
    Request(Arc<Post>, u32),
    Mover(Arc<Turn>),
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Request(post, slot), Self::Request(other, of)) => slot == of && Arc::ptr_eq(post, other),
            (Self::Mover(turn), Self::Mover(other)) => Arc::ptr_eq(turn, other),
            _ => false,
        }
    }
}

impl Claimant for Waiting {
    fn granted(&self) {
        match self {
            Self::Request(post, slot) => post.send(Letter::Granted(*slot)),
            Self::Mover(turn) => turn.comes(),
        }
    }
}

/// What a mover waits for.
#[derive(Default)]
pub(crate) struct Turn {
    has_come: Mutex<bool>,
    came: Condvar,
}

impl Turn {
    fn comes(&self) {
        *self.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.came.notify_one();
    }

    fn comes_within(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut has_come = self.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        while !*has_come {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            has_come = self.came.wait_timeout(has_come, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
