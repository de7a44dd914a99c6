//! Who else uses the volume meanwhile.

use std::ops::Range;

use crate::{Result, Volume};

/// Those who read and write the volume while it is reencrypted.
pub trait Foreground {
    /// Waits until nobody reads or writes `range`, bytes of the volume; from then on nobody does
    /// until the claim is dropped.
    ///
    /// # Errors
    /// When it cannot be had. The reencryption stops, and nothing is lost.
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>>;

    /// Whether the next step's range may be claimed, and read, while the one before is still held.
    /// It is faster so.
    fn claims_ahead(&self) -> bool;

    /// Whether somebody else writes. What was written to a range before it was claimed may be lost
    /// with the power then, so that it is not what its checksums are of: it is synced before they
    /// are relied on.
    fn writes(&self) -> bool {
        true
    }

    /// How long the next step may be, in bytes; steps that cannot be so short are as short as they
    /// can.
    fn longest(&self) -> u64 {
        u64::MAX
    }

    /// Asked before each step: may wait, to be slower, and may end it. `done` and `left` are bytes.
    fn pace(&self, done: u64, left: u64) -> Pace;

    /// Another program holds the lock of the progress, and it is waited for.
    fn waits_for_lock(&self) {}

    /// Whether the reencryption was told to stop.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// A range that is the reencryption's alone until this is dropped.
pub trait Claim {
    /// The range is in its new form now, and all of the volume is this, under the very ciphers of
    /// its plan; elsewhere nothing has changed. Data and record are on stable storage.
    ///
    /// # Errors
    /// When it cannot be taken over. The range is given up then.
    fn relay(&self, volume: Volume) -> Result<()>;

    /// What lies in the range is neither its old nor its new form, or nobody can say which of them
    /// a crash would leave: it may not be read or written, also after the claim is dropped, until a
    /// later one has relayed it.
    fn give_up(&self);
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// With the next step.
    Go,
    /// No: stop where it is, between two steps.
    Stop,
}

/// Nobody: the volume is not in use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Foreground for Alone {
    fn claim(&self, _range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Ok(Box::new(Self))
    }

    fn claims_ahead(&self) -> bool {
        true
    }

    fn writes(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Go
    }
}

impl Claim for Alone {
    fn relay(&self, _volume: Volume) -> Result<()> {
        Ok(())
    }

    fn give_up(&self) {}
}
