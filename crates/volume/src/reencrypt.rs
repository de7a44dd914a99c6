//! Reencryption: a volume whose bytes go from an old form (cipher, key, sectors, place) to a new
//! one, step by step.
//!
//! ```text
//!   Plan + Progress --step--> Step       which bytes, from where to where, and what protects them meanwhile    plan
//!                               |
//!   Foreground --claim----------|        nobody else reads or writes there                                     foreground
//!                               v
//!   Ledger <--area, record--- run        reads, crypts, writes, syncs, in the one order that survives a crash  engine
//!                               |
//!                               |--      bytes from one form to the other, on idle processors                  work
//!                               |--      what is put in the area, and what it gives back                       protect
//!                               '--      a step that was cut: done again; one that cannot be written: undone   recover, undo
//! ```
//!
//! It knows no header: where plan and progress are kept is a [`Ledger`]'s business. For volumes
//! without a header that is [`state`].

mod bytes;
mod engine;
mod foreground;
mod ledger;
mod plan;
mod protect;
mod recover;
pub mod state;
mod undo;
mod work;

pub use engine::{Options, Outcome, run};
pub use foreground::{Alone, Claim, Foreground, Pace};
pub use ledger::Ledger;
pub use plan::{Direction, Mode, Moved, Part, Plan, Progress, Protection, Step, Which, hot_zone, room};
pub use protect::checksums_mend;

#[cfg(test)]
pub(crate) mod tests;
