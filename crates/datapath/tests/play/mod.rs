//! Threads that use a volume as hard as they can, each with a model of the disk's contents.
//!
//! ```text
//!   round:   a volume and its devices, by a seed
//!     +-- players   a thread and a queue each; all kinds of requests, blocks of this player only
//!     |     disk      the possible contents of each block, now and after a power cut
//!     |     hot       blocks that all players write; none may mix two writes
//!     |     zones     the player of a volume that is written in sequence
//!     +-- layers    integrity volumes under an authenticated one, reopened after each power cut
//!     +-- director  changes policy and key, suspends, injects faults, cuts the power
//!     |     rewriter  reencrypts the volume, with an operator
//!     |     site      the reencryption's thread, and the opening after a crash
//!     |     luks      the same for a volume with a header
//!     |     forms     the volume's form before and after a reencryption
//!     +-- watchdog  ends the process, and prints the seed, when nothing moves any more
//! ```

#![allow(dead_code, reason = "each program uses a part of it")]

mod counted_device;
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
mod zones;
