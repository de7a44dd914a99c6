//! Threads that use a volume as hard as they can, each with its own model of what must be on the
//! disk.
//!
//! ```text
//!   round:   a volume and its devices, as a seed decides
//!     +-- players   a thread and a queue each; all kinds of requests, blocks that only this player writes
//!     |     disk      what each of its blocks may hold now, and after a power cut
//!     |     hot       blocks that all of them write, none of which may be half of one write and half of another
//!     |     zones     the player of a volume that is written in sequence
//!     +-- layers    integrity volumes under an authenticated one, opened anew after each power cut
//!     +-- director  changes the policy, suspends, wipes and sets the key, injects faults, cuts the power
//!     |     rewriter  has the volume reencrypted, and its operator
//!     |     site      what that thread does, and what a process finds that comes after a crash
//!     |     luks      the same for a volume that has a header
//!     |     forms     what a volume is reencrypted from and to, in which way
//!     +-- watchdog  ends the process, with the seed, when nothing moves any more
//! ```

#![allow(dead_code, reason = "each program uses a part of it")]

pub(crate) mod dice;
mod director;
mod disk;
mod forms;
mod hot;
mod layers;
mod lower;
mod luks;
mod player;
mod rewriter;
pub(crate) mod round;
#[path = "../../../device/tests/server/mod.rs"]
mod server;
mod site;
#[path = "../toy/mod.rs"]
mod toy;
mod way;
mod zones;
