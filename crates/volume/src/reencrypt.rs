//! Reencryption: a volume whose bytes go from an old form (cipher, key, sectors, place) to a new one, step by step.
//!
//! ```text
//!   Plan + Progress --next--> Step       which bytes, from where to where, and what protects them meanwhile    plan.rs
//!                               |
//!   Foreground --claim----------|        nobody else reads or writes there                                     foreground.rs
//!                               v
//!   Ledger <--area, hot, done-- engine   reads, crypts, writes, syncs, in the one order that survives a crash  engine.rs
//! ```
//!
//! It knows no header: where plan and progress are kept is a [`Ledger`]'s business.

mod foreground;
mod ledger;
mod plan;

pub use foreground::{Alone, Claim, Foreground, Pace};
pub use ledger::Ledger;
pub use plan::{Direction, Mode, Moved, Part, Plan, Progress, Protection, Step, Which, hot_zone};
