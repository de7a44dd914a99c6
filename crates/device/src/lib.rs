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
//!     +-- rbd/    an image of a Ceph cluster, through librbd: one connection for all
//!     |
//!     |   devices on other devices, whose channels they hold:
//!     +-- window  a run of another device
//!     +-- stripe  RAID-0 over several: a request in pieces
//!     +-- delay   answers later than the devices below it
//!
//!   Blocking       one request at a time, waited for: preparing a device, looking at what is on it
//!   Arena -> Buffer      page-aligned request memory, reserved when the queue opens
//!   Replies, Awaited     what other threads answer to a channel: a mailbox and a bell, and when to listen
//!   Mailbox, Bell  what other threads leave for one that waits in its ring, and what wakes it
//!   Signal         wakes the owner of an event descriptor, and never waits for it
//! ```
//!
//! A channel is asked twice. [`Channel::read_now`] and [`Channel::write_now`] answer at once or say
//! that they would block; [`Channel::start`] takes the request's [`Buffer`] and hands it back in
//! [`Channel::finish`], so memory that the kernel may still write to is never anybody else's. What
//! a channel waits for that is no request (a socket, a bell, a time) has tokens of its own and goes
//! to [`Channel::woken`].

mod arena;
mod bell;
mod blocking;
mod channel;
mod clock;
mod delay;
mod error;
mod file;
mod geometry;
mod lock;
mod losses;
mod mailbox;
pub mod nbd;
mod ram;
pub mod rbd;
mod replies;
mod request;
mod ring;
mod signal;
mod stripe;
mod sync;
mod window;

pub use arena::{Arena, Buffer};
pub use bell::Wakeup;
pub use blocking::{Blocking, flush, keep_ring_for_flushes};
pub use channel::{Channel, Device, Extent, Finished, Immediate, Io, LossHandler, SnapshotPause, Started};
pub use clock::monotonic;
pub use delay::{DelayDevice, Delayed};
pub use error::{Error, ErrorKind};
pub use file::{ExpectedBytes, FileDevice, OpenOptions, open_again};
pub use geometry::{Geometry, Zone, ZoneAction, ZoneLimits, Zones};
/// What a [`Ring`] waits for: poll(2)'s bits.
#[doc(no_inline)]
pub use libc::{POLLIN, POLLOUT};
pub use lock::lock as lock_image;
pub use mailbox::Mailbox;
pub use nbd::NbdDevice;
pub use ram::RamDevice;
pub use rbd::RbdDevice;
pub use replies::{ReplyReceiver, ReplySender};
pub use request::IoKind;
pub use ring::{LongCommand, LowerToken, Ring, RingCompletion, RingToken, restrictions};
pub use signal::Signal;
pub use stripe::StripeDevice;
pub use window::WindowDevice;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
