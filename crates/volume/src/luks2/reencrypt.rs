//! Reencryption, kept in a LUKS2 header.
//!
//! ```text
//!   requirement, keyslot "reencrypt", backup segments --slot--> Reencryption --digest--> trusted
//!   regular segments --shape--> Plan, Progress --> Volume (activate), Ledger (ledger, finish)
//! ```
//!
//! `begin` writes all of these parts for the first time, in one update of the header. `sign` adds a
//! digest to metadata without a digest.

mod activate;
mod arrange;
mod begin;
mod change;
mod decrypt;
mod digest;
mod encrypt;
mod finish;
mod ledger;
mod shape;
mod sign;
mod slot;
mod unfinished_start;

pub(super) use activate::activate;
pub use begin::{BeginOptions, NewKey, Passphrase};
pub use decrypt::{DecryptOptions, OverwrittenStart};
pub use encrypt::{EncryptOptions, NewVolume};
pub use ledger::{Ledger, ResumeOptions};
use slot::Reencryption;
pub(super) use slot::is_reencryption;
pub use unfinished_start::UnfinishedStart;

use super::Header;
use super::metadata::Metadata;
use crate::Result;
use crate::reencrypt::{Direction, Mode};

/// The state of a reencryption according to its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The direction of the change: encryption, reencryption or decryption.
    pub mode: Mode,
    /// The order of the steps.
    pub direction: Direction,
    /// The stage of the reencryption.
    pub stage: Stage,
}

/// The stage of a reencryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Between two steps.
    Clean,
    /// In the middle of a step, which has to be recovered before anything else.
    Hot,
    /// All of the data is new; only the old keys are still in the header.
    Final,
}

impl Header {
    /// Returns the reencryption in progress, if any.
    ///
    /// # Errors
    /// `Unsupported` for features that this build does not know, and for metadata without a digest;
    /// `BadHeader` when the parts contradict each other.
    pub fn reencryption(&self) -> Result<Option<Status>> {
        let metadata = self.metadata();
        let Some(found) = Reencryption::parse(metadata)? else { return Ok(None) };
        let stage = shape::stage(metadata, &found);
        Ok(Some(Status { mode: found.mode, direction: found.direction, stage }))
    }
}

/// Returns true when the header names a reencryption in progress, even one that cannot be resumed.
pub(super) fn is_under_way(metadata: &Metadata) -> bool {
    metadata.config.requirements.iter().any(|name| is_reencryption(name))
}

#[cfg(test)]
mod tests;
