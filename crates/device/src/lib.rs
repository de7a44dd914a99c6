//! Lower devices: where ciphertext lies. They know nothing of encryption.
//!
//! ```text
//!   Device (opened once, shared)                Ring    one a queue: waits for lower I/O and for the
//!     |  channel()                               |      export's descriptors in one place
//!     v                                          |
//!   Channel (one a queue, no lock) --start/finish+
//!     |
//!     +-- file/   a regular file or block device: RWF_NOWAIT first, io_uring for what would block
//!     +-- ram     memory
//!     +-- nbd/    an export of an NBD server: a connection for each channel, or one for all
//!     |
//!     |  on other devices, whose channels they hold:
//!     +-- stripe     RAID-0 over several: a request in pieces
//!     +-- model/     takes the time of a rotating disk, an SSD, NVMe: timeouts in the ring
//!     +-- zoned      fails what is not written in sequence
//!     +-- fault/     fails as rules say; forgets what was not flushed when its power is cut
//!     +-- recorder   writes down requests and their order
//!
//!   Blocking       one request at a time, waited for: preparing a device, looking at what is on it
//!   Arena -> Buffer      page-aligned request memory, reserved when the queue opens
//!   Signal         wakes the owner of an event descriptor, and never waits for it
//! ```
//!
//! A channel is asked twice. [`Channel::read_now`] and [`Channel::write_now`] answer at once or say that they would
//! block; [`Channel::start`] takes the request's [`Buffer`] and hands it back in [`Channel::finish`], so memory that
//! the kernel may still write to is never anybody else's.

mod arena;
mod bell;
mod blocking;
mod channel;
mod clock;
mod error;
mod fault;
mod file;
mod geometry;
mod lock;
mod losses;
mod model;
pub mod nbd;
mod ram;
mod recorder;
mod request;
mod ring;
mod signal;
mod stripe;
mod zoned;

pub use arena::{Arena, Buffer};
pub use blocking::Blocking;
pub use channel::{Channel, Device, Extent, Finished, Io, Now, Started};
pub use clock::monotonic;
pub use error::{Error, ErrorKind};
pub use fault::{Fault, FaultControl, FaultDevice, Rule};
pub use file::{FileDevice, OpenOptions};
pub use geometry::{Geometry, Zone, ZoneAction, ZoneLimits, Zones};
pub use model::{Counters, Flash, Medium, ModelDevice, Profile, Rotating, Scheduler};
pub use nbd::NbdDevice;
pub use ram::RamDevice;
pub use recorder::{Record, RecorderDevice};
pub use request::Kind;
pub use ring::{Completion, Ring, Token, restrictions};
pub use signal::Signal;
pub use stripe::StripeDevice;
pub use zoned::ZonedDevice;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
