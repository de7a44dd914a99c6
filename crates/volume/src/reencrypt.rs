//! Reencryption: a volume's bytes are converted from an old form (cipher, key, sectors, place) to a
//! new form, step by step.
//!
//! ```text
//!   Plan + Progress --step--> Step    the bytes, their way, their protection         plan
//!                               |
//!   Foreground --claim----------|     no other reads or writes of these bytes        foreground
//!                               v
//!   Ledger <--area, record--- run     reads, crypts, writes, syncs, in a safe order  engine
//!                               |
//!                               |--   conversion, on idle processors                 work
//!                               |--   the contents of the area, in and out           protect
//!                               '--   an interrupted step, a failed write            recover, undo
//! ```
//!
//! This module knows no header: a [`Ledger`] keeps plan and progress. For volumes without a header,
//! the ledger is [`state`].

mod bytes;
mod engine;
mod foreground;
mod ledger;
mod plan;
mod protect;
mod recover;
mod sector_fit;
pub mod state;
mod step_protection;
mod undo;
mod work;

pub use engine::{Options, Outcome, run};
pub use foreground::{Alone, Claim, Foreground, Pace};
pub use ledger::Ledger;
pub use plan::{Direction, Mode, Moved, Part, Plan, Progress, Protection, Step, Which, hot_zone, room};
pub use protect::checksums_mend;
pub use sector_fit::{SectorFit, plain_filesystem_len, volume_filesystem_len};
pub use step_protection::{DiskBlocks, SectorForm, WantedProtection, forms};

#[cfg(test)]
pub(crate) mod tests;
