//! dm-verity: a read-only device whose blocks are compared with a tree of hashes as they are read.
//!
//! ```text
//!   hash device   | .. | level 2: one block | level 1 | level 0 |        tree.rs: the layout
//!                        |  hashed: the root   ^  |     ^  |
//!                        +---------------------+  +-----+  +---> a hash for each block of data
//!
//!   a queue's channel -- read_now --> Shared: reads that need no wait           device.rs
//!         | start                       ^     verified hash blocks are kept      cache.rs
//!         +----> reads --> workers ------+     each over a separate channel that waits
//! ```
//!
//! Sources: Documentation/admin-guide/device-mapper/verity.rst, and the behaviour of
//! drivers/md/dm-verity-target.c. The superblock that `veritysetup` writes before the tree is not
//! read here: a table states all of its fields.

#![forbid(unsafe_code)]

mod cache;
mod device;
mod error;
mod jobs;
mod tree;

pub use device::{VerityDevice, VerityOptions};
pub use error::{Error, ErrorKind};
pub use tree::{Tree, TreeSettings};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
