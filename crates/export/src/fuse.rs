//! A volume as a file, without root: FUSE.
//!
//! ```text
//!   MountPoint     a file to mount over, or a folder: checked before anything is unlocked
//!        |
//!   FuseServer     mounts, starts the threads, unmounts, waits for those who have it open
//!        |  mount.rs      underseal_fuse::Session: what is asked of the kernel
//!        |
//!   Worker         one thread, one queue, one descriptor: requests in, completions out
//!        |- files.rs      names and attributes
//!        |- protocol.rs   what the kernel wants
//!        |- turns.rs      which of the idle threads listens
//!        +- hold.rs       threads at rest, while another process takes the mount over
//!
//!   script         the kernel's side without a kernel, for fuzzing
//! ```
//!
//! A payload arrives where it is encrypted, a reply leaves from where it was decrypted, and many
//! requests of one thread are under way together.
//!
//! Writes go through the kernel's page cache, not into it (there is no write-back cache): what was
//! acknowledged has reached the lower device's file, and survives this process.

mod files;
mod hold;
mod mount;
mod protocol;
pub mod script;
mod server;
mod transport;
mod turns;
mod worker;

pub use hold::{CarriedMount, FuseHolder, MountPlace};
pub use mount::{MountPoint, SOURCE};
pub use server::{FuseConfig, FuseServer, FuseStopper};
pub use transport::FuseTransport;

/// The longest read or write: the most pages that the kernel puts into one request.
const INBOX: u32 = 1 << 20;
