//! Reencryption as LUKS2 keeps it: in the header.
//!
//! ```text
//!   requirement, keyslot "reencrypt", backup segments --slot--> Reencryption --digest--> who wrote it had the keys
//!   regular segments ------------------------------------shape--> Plan, Progress --> Volume (activate), Ledger (ledger, finish)
//! ```
//!
//! `begin` writes all of it for the first time, in one update of the header; `sign` gives a digest
//! to metadata that have none.

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
pub use decrypt::DecryptOptions;
pub use encrypt::{EncryptOptions, NewVolume};
pub use ledger::{Ledger, ResumeOptions};
use slot::Reencryption;
pub(super) use slot::is_reencryption;
pub use unfinished_start::UnfinishedStart;

use super::Header;
use super::metadata::Metadata;
use crate::Result;
use crate::reencrypt::{Direction, Mode};

/// How far a reencryption is, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// What becomes of the volume.
    pub mode: Mode,
    /// In which order.
    pub direction: Direction,
    /// Where it stands.
    pub stage: Stage,
}

/// Where a reencryption stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Between two steps.
    Clean,
    /// In the middle of a step, which has to be made good before anything else.
    Hot,
    /// All of the data is new: only the old keys are still there.
    Final,
}

impl Header {
    /// The reencryption that is under way, if any.
    ///
    /// # Errors
    /// `Unsupported` for what this build does not know or nobody can vouch for; `BadHeader` where
    /// its parts do not fit each other.
    pub fn reencryption(&self) -> Result<Option<Status>> {
        let metadata = self.metadata();
        let Some(found) = Reencryption::parse(metadata)? else { return Ok(None) };
        let stage = shape::stage(metadata, &found);
        Ok(Some(Status { mode: found.mode, direction: found.direction, stage }))
    }
}

/// Whether the header says that one is under way, whether or not it can be gone on with.
pub(super) fn is_under_way(metadata: &Metadata) -> bool {
    metadata.config.requirements.iter().any(|name| is_reencryption(name))
}

#[cfg(test)]
mod tests;
