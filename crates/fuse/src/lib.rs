//! FUSE, as the kernel speaks it.
//!
//! ```text
//!   Session        a mount, its handshake done          mount.rs  mount(2) or fusermount3
//!     |            unmount, Mounted::at                 init.rs   what is asked for when it begins
//!   Channel        one thread's descriptor: a request in, its reply out
//!     |  ring.rs      the same through the thread's io_uring (home.rs: on which processor)
//!     |
//!   wire           requests and replies as bytes
//! ```
//!
//! `script` stands in the kernel's place, for fuzzing.
//!
//! There is no loop here, and no trait to implement: whoever serves owns its threads, and the
//! memory that requests arrive in. That is why no library for filesystems is beneath. Their loops
//! sleep in read(2), so that a thread cannot wait for its lower device and for the kernel at once,
//! and hand out the bytes to write as a slice that may not be changed, at no particular alignment;
//! and what is left of them without the loop is less than what there is to work around.

#![deny(unsafe_code)]

mod channel;
mod home;
mod init;
mod mount;
mod point;
mod ring;
pub mod script;
mod session;
mod table;
mod unmount;
pub mod wire;

pub use channel::{FuseChannel, ReceivedRequest};
pub use home::HomeProcessors;
pub use init::{Init, capability};
pub use mount::{MountFailure, MountSettings};
pub use point::{Point, Unmounter};
pub use ring::{EntryEvent, EntryRequest, RingEntries, RingShare, decline, not_offered, queues};
pub use session::FuseSession;
pub use table::MountEntry;
pub use unmount::{is_in_use, unmount};
