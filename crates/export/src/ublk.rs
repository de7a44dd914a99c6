//! A volume as a block device of the kernel's, /dev/ublkbN: ublk.
//!
//! ```text
//!   UblkServer     one thread for the device's life: claims it, starts it, waits, stops it, deletes it
//!     |  claim.rs     which device: a new one, or one whose server was killed and that waits for another
//!     |  abandoned.rs the recovery that a process began and did not finish
//!     |  queues.rs    the threads of its queues
//!     |  hold.rs      lets go of it, for another process; goes on with it
//!     |  params.rs    what the kernel is told of the volume
//!     |  control.rs   commands to /dev/ublk-control
//!     |  abi.rs       numbers and layouts of the kernel's interface
//!     |  link.rs      /dev/underseal/NAME
//!     |
//!   Worker         one hardware queue: a thread, a `Queue`; requests in, completions out
//!     |- character.rs  /dev/ublkcN: descriptors of requests, and where their data is
//!     |- request.rs    a descriptor as what the queue understands
//!     +- zones.rs      where the zones of a zoned volume are written next
//! ```
//!
//! A thread waits in one place. A queue's commands to the driver ("fetch a request", "this one is
//! done, fetch another") are 16 bytes long and fit an ordinary entry of the queue's own ring
//! (`Queue::command`): one call into the kernel submits I/O, answers requests and waits for the
//! next of either.
//!
//! Data is copied by pread and pwrite on /dev/ublkcN (`UBLK_F_USER_COPY`, Linux 6.5): a write's
//! plaintext lands in the queue's arena and is encrypted there; a read is decrypted there and
//! leaves from there. Memory of the request itself (zero copy) would save nothing: what is written
//! is encrypted into other memory anyway, since the caller's must not change. For a user who is not
//! root the kernel does not allow this; then it copies itself, through a buffer for each request
//! ([`UblkConfig::unprivileged`]).
//!
//! The crate libublk (0.4.8) is not used. Its `UblkCtrl` repeats a command that failed in an older
//! encoding and so hides the kernel's reason; it keeps a file for each device in a folder that all
//! users may write to, which it opens as root; it prints to stderr; and its queues bring a ring and
//! an executor of their own. Its bindings (libublk-rs-sys) need libclang and 22 crates at build
//! time for the 60 constants of `abi.rs`.
//!
//! When this process is killed, the device stays and its users wait (`UBLK_F_USER_RECOVERY`).
//! Opening the same volume again goes on with it: requests that were under way are done again,
//! which for reads and writes makes no difference.

mod abandoned;
mod abi;
mod character;
mod claim;
mod control;
mod hold;
mod link;
mod locking;
mod params;
mod queues;
mod request;
mod server;
mod worker;
mod zones;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use hold::UblkHolder;
pub use server::{UblkServer, UblkStopper, available};

/// How a volume becomes a block device.
#[derive(Debug, Clone)]
pub struct UblkConfig {
    /// The N of /dev/ublkbN; by default the kernel chooses.
    pub id: Option<u32>,
    /// Hardware queues, each with a thread.
    pub queues: u16,
    /// Requests in flight on one queue.
    pub depth: u16,
    /// /dev/underseal/NAME will lead to the device.
    pub name: String,
    /// A number that is the same whenever this volume is opened: a device that waits for its server
    /// is given to nobody else.
    pub identity: u64,
    /// Without root's rights: a device that only its maker can use, and that does not outlive this
    /// process.
    pub unprivileged: bool,
    /// How long the device is served on when it is in use and the server is to stop.
    pub drain_timeout: Duration,
}

impl UblkConfig {
    /// How long a device that is in use is served on by default.
    pub const DRAINS: Duration = Duration::from_secs(30);
}

/// Which block device a volume is, for another process that goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct UblkPlace {
    /// The N of /dev/ublkbN.
    pub id: u32,
    /// As [`UblkConfig::name`].
    pub name: String,
    /// As [`UblkConfig::identity`].
    pub identity: u64,
    /// Whether /dev/underseal/NAME leads to it.
    pub linked: bool,
}

/// A number for [`UblkConfig::identity`] out of what names the volume: FNV-1a.
pub fn identity(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
