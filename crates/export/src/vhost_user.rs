//! The vhost-user export: a volume as a virtio block device of another process (vhost-user-blk).
//!
//! ```text
//!   front end (QEMU, libblkio, ...)
//!      |  Unix socket: features, memory, rings     |  rings and data in shared memory
//!      v                                           v
//!   server -> session: `vhost` reads messages   worker, one a ring: Ring -> request -> Queue
//!                |  Device: handles messages        ^
//!                +------ starts, messages, ends ----+
//!                |- back: notifications to the front end
//!                |- hold: the pause of both, for a handover in the form `carried`
//! ```
//!
//! The crate vhost-user-backend is not used: its threads wait in an epoll, but here a thread waits
//! in its queue's ring only; and it refuses in-flight recovery. The crate virtio-queue is not used
//! either: it cannot begin a chain at a given head, which recovery needs, does not report a chain
//! that an error cut short, and publishes the used index with each element. Packed rings are not
//! offered.
//!
//! Guest memory is never trusted. Each value is read once and that copy is checked; a write's bytes
//! are copied out before they are encrypted, a read's are copied in after they were decrypted. A
//! malformed ring is stopped with an error; a malformed message ends the connection.

mod back;
mod carried;
pub mod chain;
mod config;
mod device;
pub mod guest;
mod inflight;
mod pause;
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
pub use pause::VhostUserHolder;
pub use server::{MOST_QUEUES, VhostUserConfig, VhostUserServer, VhostUserStopper};

/// Makes the error for a fault of the front end.
fn broken(context: impl Into<String>) -> ProtocolError {
    ProtocolError::ReqHandlerError(io::Error::other(context.into()))
}

/// Makes the error for a message of a feature that was not offered.
fn refused() -> ProtocolError {
    ProtocolError::InvalidOperation("not offered")
}

fn no_memory(errno: rustix::io::Errno) -> ProtocolError {
    broken(format!("no memory to track requests with: {errno}"))
}
