//! Code that all tests with real programs share.
//!
//! ```text
//!   tools.rs    running programs: one that is missing fails the test and names its package
//!   scratch.rs  a folder per test; reproducible bytes out of a seed that is printed
//!   volume.rs   `underseal format`, `read` and `write` on an image
//!   cutter.rs   programs that are killed at one of their system calls
//!   fio.rs      fio, which writes and verifies
//!   server.rs   `underseal open`, waited for, stopped, killed
//!   nbd.rs      a small client that sends exactly the given bytes, where a real one cannot
//!   trees.rs    folders full of files
//!   terminal.rs a pseudo-terminal to type passphrases on
//!   metrics.rs  the metrics that a server gives to scrapers
//!   mounts.rs   nbdfuse, loop devices and mounts that are undone however a test ends
//! ```

pub(crate) mod cutter;
pub(crate) mod fio;
pub(crate) mod metrics;
pub(crate) mod mounts;
pub(crate) mod nbd;
pub(crate) mod scratch;
pub(crate) mod server;
pub(crate) mod terminal;
pub(crate) mod thin_disk;
pub(crate) mod tools;
pub(crate) mod trees;
pub(crate) mod volume;

pub(crate) use scratch::{Scratch, bytes, seed};
pub(crate) use server::Server;
pub(crate) use tools::{fails, output, run, tool};
