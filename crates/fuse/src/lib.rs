//! The FUSE protocol of the kernel.
//!
//! ```text
//!   Session        a mount, its handshake done          mount.rs  mount(2) or fusermount3
//!     |            unmount, MountEntry::at            init.rs   the handshake
//!     |            server.rs: whether another mount's server has ended
//!   Channel        one thread's descriptor: a request in, its reply out
//!     |  ring.rs      the same through the thread's io_uring (home.rs: on which processor)
//!     |
//!   wire           requests and replies as bytes
//! ```
//!
//! `script` stands in for the kernel, for fuzzing.
//!
//! This crate has no loop and no trait to implement: a server owns its threads, and the memory that
//! requests arrive in. Filesystem libraries do not allow this: their loops sleep in read(2), so
//! that a thread cannot wait for its lower device and for Linux at once, and they hand out the
//! bytes to write as an immutable slice, at no particular alignment; the rest of such a library is
//! smaller than the workarounds.

#![deny(unsafe_code)]

mod asking;
mod channel;
mod connection;
mod home;
mod identity;
mod init;
mod mount;
mod point;
mod ring;
pub mod script;
mod server;
mod session;
mod unmount;
pub mod wire;

pub use channel::{FuseChannel, ReceivedRequest};
pub use home::HomeProcessors;
pub use init::{Init, capability};
pub use mount::{MountFailure, MountSettings};
pub use point::{Point, Unmounter};
pub use ring::{EntryEvent, EntryRequest, RingEntries, RingShare, decline, not_offered, queues};
pub use session::FuseSession;
pub use underseal_device::{MOUNT_SOURCE as SOURCE, MountEntry};
pub use unmount::{is_in_use, unmount, unmount_dead};
