//! The FUSE export: a volume as a file, without root.
//!
//! ```text
//!   MountPoint     a file to mount over, or a folder: checked before anything is unlocked
//!        |
//!   FuseServer     mounts, starts the threads, unmounts, waits until open files are closed
//!        |  mount.rs      underseal_fuse::Session: the mount's parameters
//!        |
//!   Worker         one thread, one queue, one descriptor: requests in, completions out
//!        |- files.rs      names and attributes
//!        |- protocol.rs   the kernel's requests
//!        |- turns.rs      which of the idle threads listens
//!        +- pause.rs      paused threads, during a handover of the mount
//!
//!   script         the kernel's side without a kernel, for fuzzing
//! ```
//!
//! A write's payload arrives where it is encrypted, a read's reply is sent from where it was
//! decrypted, and many requests of one thread are in flight together.
//!
//! Writes go through the kernel's page cache, not into it (no write-back cache is used): an
//! acknowledged write has reached the lower device's file, and survives the end of this process.

mod crowd;
mod files;
mod mount;
mod pause;
mod protocol;
pub mod script;
mod server;
mod transport;
mod turns;
mod worker;

pub use mount::MountPoint;
pub use pause::{CarriedMount, FuseHolder, MountPlace};
pub use server::{FuseConfig, FuseServer, FuseStopper};
pub use transport::FuseTransport;
pub use underseal_fuse::SOURCE;

/// The longest read or write: the most pages that the kernel puts into one request.
const INBOX: u32 = 1 << 20;
