//! How a plain volume is reached from outside.
//!
//! ```text
//!   nbd/      Network Block Device: newstyle-fixed, TLS, Unix sockets and TCP
//!   fuse/     a file: mounted over a file, or one for each segment in a folder
//!   ublk/     a block device of the kernel's
//!   vhost_user/   a virtio block device of a virtual machine
//!   control/  status, policies, suspension and keys of a volume while it is open
//!   metrics/  the same figures for Prometheus
//!   door      the loop that the first four share: what is a rule for all of them
//!   net/      sockets that clients connect to, for all of these
//! ```
//!
//! An export knows one thing of the layers below: it owns a queue, puts requests in and takes
//! completions out.

mod complaints;
pub mod control;
mod door;
mod errno;
mod error;
mod event;
pub mod fuse;
pub mod metrics;
pub mod nbd;
pub mod net;
mod tickets;
pub mod ublk;
pub mod vhost_user;

pub use error::{Error, ErrorKind};

/// Tells those who have a volume through one door of its size, which was the first and is the
/// second. What the operator should know, where they could not be told.
pub type TellSize = std::sync::Arc<dyn Fn(u64, u64) -> Option<String> + Send + Sync>;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
