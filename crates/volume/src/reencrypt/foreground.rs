//! Other users of the volume during its reencryption.

use std::ops::Range;

use crate::{Result, Volume};

/// The users who read and write the volume while it is reencrypted.
pub trait Foreground {
    /// Waits until no user reads or writes `range`, bytes of the volume. No user does so until the
    /// claim is dropped.
    ///
    /// # Errors
    /// Any, if the range cannot be claimed. The reencryption stops, and nothing is lost.
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>>;

    /// Returns true when the next step's range may be claimed, and read, while the previous range
    /// is still held. That is faster.
    fn claims_ahead(&self) -> bool;

    /// Returns true when users write. Bytes written to a range before its claim may be lost after a
    /// power cut, and would not match the checksums then, so they are synced before the checksums
    /// are relied on.
    fn writes(&self) -> bool {
        true
    }

    /// Returns the largest length of the next step, in bytes. A step that cannot be that short is
    /// as short as possible.
    fn longest(&self) -> u64 {
        u64::MAX
    }

    /// Called before each step: may wait, to reduce the speed, and may end the reencryption. `done`
    /// and `left` are bytes.
    fn pace(&self, done: u64, left: u64) -> Pace;

    /// Another program holds the lock of the progress, and the reencryption waits for it.
    fn waits_for_lock(&self) {}

    /// Returns true after a stop of the reencryption.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// A range that only the reencryption uses until this value is dropped.
pub trait Claim {
    /// Hands the range over in its new form. `volume` is the whole volume, with the same ciphers as
    /// the plan's; the other ranges are unchanged. Data and record are on stable storage.
    ///
    /// # Errors
    /// Any, if the new form cannot be used. The range is unusable then.
    fn relay(&self, volume: Volume) -> Result<()>;

    /// The range is in neither its old nor its new form, or a crash could leave either form. The
    /// range is unusable, also after the claim is dropped, until a later claim has relayed it.
    fn give_up(&self);
}

/// Whether the reencryption continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Continue with the next step.
    Go,
    /// Stop between two steps.
    Stop,
}

/// No users: the volume is not in use.
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
