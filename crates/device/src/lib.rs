//! Lower devices, which hold ciphertext. They know nothing of encryption.
//!
//! ```text
//!   Device (opened once, shared)                Ring    one a queue: waits for lower I/O and
//!     |  channel()                               |      for the export's descriptors together
//!     v                                          |
//!   Channel (one a queue, no lock) --start/finish+
//!     |
//!     +-- file/   a regular file or block device: RWF_NOWAIT first, else io_uring
//!     +-- ram     memory
//!     +-- nbd/    an export of an NBD server: a connection for each channel, or one for all
//!     +-- rbd/    an image of a Ceph cluster, through librbd: one connection for all
//!     |
//!     |   devices on other devices, whose channels they hold:
//!     +-- window  a run of another device
//!     +-- stripe  RAID-0 over several: a request in pieces
//!     +-- delay   answers later than the devices below it
//!
//!   Blocking         one request at a time, for preparing or inspecting a device
//!   Arena -> Buffer  page-aligned request memory, reserved when the queue opens
//!   ReplySender, ReplyReceiver   replies of other threads to a channel: mailbox and wakeup
//!   Mailbox, Wakeup  messages to a thread that waits in its ring, and its wakeup
//!   Signal           signals another process's eventfd, without ever waiting
//!   loops/           loop devices below and over a file
//!   ReopenedFile     a file opened once more, for a header or a reencryption
//!   RuntimeDirectory this user's directory of sockets and locks
//!   UpdateLock       the lock of header updates on devices without locks
//! ```
//!
//! A channel is asked twice. [`Channel::read_now`] and [`Channel::write_now`] answer at once or
//! report that they would block; [`Channel::start`] takes the request's [`Buffer`] and
//! [`Channel::finish`] returns it, so memory that the kernel may still write to has no other user.
//! Events that belong to no request (a socket, a wakeup, a timeout) have separate tokens and go to
//! [`Channel::woken`].

#![deny(unsafe_code)]

mod arena;
mod blocking;
mod capability;
mod channel;
mod clock;
mod delay;
mod error;
mod file;
mod geometry;
mod lock;
mod loops;
mod losses;
mod mailbox;
pub mod nbd;
mod ram;
pub mod rbd;
mod replies;
mod request;
mod ring;
mod runtime;
mod signal;
mod stripe;
mod sync;
mod update_lock;
mod wakeup;
mod window;

pub use arena::{Arena, Buffer};
pub use blocking::{Blocking, flush, keep_ring_for_flushes};
pub use capability::{LossHandler, SharedImage, SnapshotPause, TagCheck, ZoneControl, each_below};
pub use channel::{Channel, Device, Extent, Finished, Immediate, Io, Started};
pub use clock::monotonic;
pub use delay::{DelayDevice, Delayed};
pub use error::{Error, ErrorKind};
pub use file::{ExpectedBytes, FileDevice, OpenOptions, ReopenedFile, Runs, open_again};
pub use geometry::{Geometry, Zone, ZoneAction, ZoneLimits, Zones};
/// The events of poll(2) that a [`Ring`] waits for.
#[doc(no_inline)]
pub use libc::{POLLIN, POLLOUT, POLLRDHUP};
pub use lock::{lock as lock_image, lock_header};
pub use loops::{
    FileId, LoopFile, LoopOver, file_below_loop, lock_loop_file, loop_file_id, loop_over, release_loop,
};
pub use mailbox::Mailbox;
pub use nbd::NbdDevice;
pub use ram::RamDevice;
pub use rbd::RbdDevice;
pub use replies::{ReplyReceiver, ReplySender};
pub use request::IoKind;
pub use ring::{LongCommand, LowerToken, Ring, RingCompletion, RingToken, restrictions};
pub use runtime::RuntimeDirectory;
pub use signal::Signal;
pub use stripe::StripeDevice;
pub use underseal_named_file::{MOUNT_SOURCE, MountEntry};
pub use update_lock::{UpdateGuard, UpdateLock};
pub use wakeup::Wakeup;
pub use window::WindowDevice;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
