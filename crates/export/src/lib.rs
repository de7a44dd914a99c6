//! The exports of a volume, its control socket and its metrics.
//!
//! ```text
//!   nbd/      Network Block Device: newstyle-fixed, TLS, Unix sockets and TCP
//!   fuse/     a file: mounted over a file, or one for each segment in a folder
//!   ublk/     a block device of the kernel's
//!   vhost_user/   a virtio block device of a virtual machine
//!   control/  status, policies, suspension and keys of a volume while it is open
//!   metrics/  the same figures for Prometheus
//!   `export_loop`    the loop that the four exports share, with their common rules
//!   net/      the sockets that clients connect to
//! ```
//!
//! An export uses one thing of the layers below: it owns a queue, submits requests and takes
//! completions.

#![deny(unsafe_code)]

pub mod control;
mod errno;
mod error;
mod event;
mod export_loop;
mod failure_log;
pub mod fuse;
pub mod metrics;
pub mod nbd;
pub mod net;
mod request_table;
pub mod ublk;
pub mod vhost_user;

pub use error::{Error, ErrorKind};

/// Notifies the clients of one export of the volume's size; the arguments are the old and the new
/// size. Returns a note for the operator when the clients could not be notified.
pub type TellSize = std::sync::Arc<dyn Fn(u64, u64) -> Option<String> + Send + Sync>;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
