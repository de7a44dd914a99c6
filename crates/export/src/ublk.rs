//! The ublk export: a volume as a kernel block device, /dev/ublkbN.
//!
//! ```text
//!   UblkServer     one thread for the device's life: claims, starts, waits, stops, deletes
//!     |  claim.rs     the choice of the device: a new one, or one whose server was killed
//!     |  abandoned.rs a recovery that a process began and did not finish
//!     |  queues.rs    the threads of its queues
//!     |  unserved.rs  devices whose servers have ended
//!     |  pause.rs     releases the device during a handover, and resumes it
//!     |  params.rs    the parameters of the disk
//!     |  control.rs   commands to /dev/ublk-control
//!     |  abi.rs       numbers and layouts of the kernel's interface
//!     |  link.rs      /dev/underseal/NAME
//!     |
//!   Worker         one hardware queue: a thread, a `Queue`; requests in, completions out
//!     |- character.rs  /dev/ublkcN: descriptors of requests, and the copying of data
//!     |- request.rs    a parsed descriptor
//!     +- zones.rs      the write pointers of a zoned volume
//! ```
//!
//! A thread waits in one place. A queue's commands to the driver ("fetch a request", "this one is
//! done, fetch another") are 16 bytes long and fit an ordinary entry of the queue's ring
//! (`Queue::command`): one system call submits I/O, answers requests and waits for either kind of
//! event.
//!
//! Data is copied by pread and pwrite on /dev/ublkcN (`UBLK_F_USER_COPY`, Linux 6.5): a write's
//! plaintext is copied into the queue's arena and encrypted there; a read is decrypted in the arena
//! and copied from there. Zero copy (the request's own pages) would save nothing: a write is
//! encrypted into other memory anyway, since the caller's pages must not change. The kernel does
//! not permit this mode to users other than root; for them the kernel copies, through a buffer for
//! each request ([`UblkConfig::unprivileged`]).
//!
//! The crate libublk (0.4.8) is not used. Its `UblkCtrl` repeats a failed command in an older
//! encoding and so hides the kernel's reason; it keeps a file for each device in a folder that all
//! users may write to, which it opens as root; it prints to stderr; and its queues bring a separate
//! ring and executor. Its bindings (libublk-rs-sys) need libclang and 22 crates at build time for
//! the 60 constants of `abi.rs`.
//!
//! When this process is killed, the device stays and its users wait (`UBLK_F_USER_RECOVERY`).
//! Opening the same volume again resumes the device: requests that were in flight are repeated,
//! which for reads and writes makes no difference.

mod abandoned;
mod abi;
mod character;
mod claim;
mod control;
mod link;
mod locking;
mod params;
mod pause;
mod queues;
mod request;
mod server;
mod unserved;
mod worker;
mod zones;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use pause::UblkHolder;
pub use server::{UblkServer, UblkStopper, available};
pub use unserved::{changes_sizes, exists, stop_unserved};

/// The settings of a ublk export.
#[derive(Debug, Clone)]
pub struct UblkConfig {
    /// The N of /dev/ublkbN; by default the kernel chooses.
    pub id: Option<u32>,
    /// The number of hardware queues, each with a thread.
    pub queues: u16,
    /// The most requests in flight on one queue.
    pub depth: u16,
    /// The name of the link /dev/underseal/NAME to the device.
    pub name: String,
    /// A number that is the same whenever this volume is opened: a device that waits for its server
    /// is only recovered for the same number.
    pub identity: u64,
    /// True without root's rights: only the device's maker can use the device, and the device ends
    /// with this process.
    pub unprivileged: bool,
    /// How long the device is served while it is in use and the server is to stop.
    pub drain_timeout: Duration,
    /// True for a device of device mapper: its volumes follow one another, and its users are looked
    /// for before it is stopped. No link leads to it.
    pub for_tables: bool,
    /// True for a device that is read-only, whatever its volume is.
    pub read_only: bool,
}

impl UblkConfig {
    /// The default of [`UblkConfig::drain_timeout`].
    pub const DRAINS: Duration = Duration::from_secs(30);
}

/// The block device of a volume, for the new server of a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct UblkPlace {
    /// The N of /dev/ublkbN.
    pub id: u32,
    /// As [`UblkConfig::name`].
    pub name: String,
    /// As [`UblkConfig::identity`].
    pub identity: u64,
    /// True when /dev/underseal/NAME leads to the device.
    pub linked: bool,
    /// As [`UblkConfig::for_tables`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_tables: bool,
}

/// Computes [`UblkConfig::identity`] from the volume's name: FNV-1a.
pub fn identity(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
