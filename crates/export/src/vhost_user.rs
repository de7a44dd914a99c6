//! A volume as a virtio block device of another process: vhost-user-blk.
//!
//! ```text
//!   front end (QEMU, libblkio, ...)
//!      |  Unix socket: features, memory, rings            |  rings and data in memory that both share
//!      v                                                  v
//!   server -> session: `vhost` reads messages          worker, one for each ring: Ring -> request -> Queue
//!                |  Device: what they make of it          ^
//!                +------ starts, tells, ends -------------+
//!                |- back: what the front end is told without having asked
//!                |- hold: both come to rest, so that another process may go on with them as they were `carried` there
//! ```
//!
//! The crate vhost-user-backend is not used: its threads wait in an epoll of their own, where ours
//! wait in their queue's ring and nowhere else, and it refuses in-flight recovery. Nor is
//! virtio-queue: a chain cannot be begun at a head of our choice there, which recovery does, one
//! that is cut short by an error looks whole, and its used index goes out with each element. Packed
//! rings are not offered.
//!
//! Guest memory is never trusted. Each value is read once and checked as it was read; a write's
//! bytes are copied out before they are encrypted, a read's are copied in after they were
//! decrypted. A ring that makes no sense is stopped and says so; a message that makes none ends the
//! connection.

mod back;
mod carried;
pub mod chain;
mod config;
mod device;
pub mod guest;
mod hold;
mod inflight;
pub mod request;
pub mod ring;
mod running;
mod server;
mod session;
mod shared;
mod worker;

use std::io;

use vhost::vhost_user::Error as ProtocolError;

pub use carried::{Agreed, CarriedFrontEnd};
pub use hold::VhostUserHolder;
pub use server::{MOST_QUEUES, VhostUserConfig, VhostUserServer, VhostUserStopper};

/// What a front end did wrong.
fn broken(context: impl Into<String>) -> ProtocolError {
    ProtocolError::ReqHandlerError(io::Error::other(context.into()))
}

/// A message of something that was not offered.
fn refused() -> ProtocolError {
    ProtocolError::InvalidOperation("not offered")
}

fn no_memory(errno: rustix::io::Errno) -> ProtocolError {
    broken(format!("no memory to track requests with: {errno}"))
}
