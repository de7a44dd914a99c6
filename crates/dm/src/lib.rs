//! Device mapper's ioctls, answered in userspace.
//!
//! ```text
//!   server     a socket for whoever calls ioctl(2): the preloaded library       crates/dm-preload
//!     |  header, records      the structure and what follows it, without I/O
//!     v
//!   Mapper     the commands, by number: create, load, resume, status, remove ..
//!     |- registry   names, UUIDs and numbers
//!     |- keys       those of the keyring that tables name
//!     |- device     one device: live table, inactive table, suspended, events
//!     |
//!     +-- Host      makes tables: in the command, a process for each            crates/underseal/src/dm
//!     |     Served  a table that is ready: shown as a file, taken over from another, suspended, ended
//!     +-- Nodes     block devices
//!           loops   loop devices over those files; opens: who has them open; links: names in /dev;
//!                   holders: which lie on which
//! ```
//!
//! The sources of what is answered are include/uapi/linux/dm-ioctl.h and the behaviour of
//! drivers/md/dm-ioctl.c, Linux 6.12.

mod device;
mod error;
pub mod header;
mod holders;
mod host;
mod keys;
mod links;
mod loops;
mod mapper;
mod node_name;
mod number;
mod opens;
pub mod records;
mod registry;
pub mod script;
mod sender;
pub mod server;
mod targets;

pub use error::{Error, Result};
pub use host::{Given, Host, Messaged, Names, Node, Nodes, Room, Served, Table, TableLoad};
pub use keys::GrantedKeys;
pub use loops::{LeftNode, LoopNodes, backing_file};
pub use mapper::{Caller, Command, Mapper};
pub use number::DeviceNumber;
pub use opens::Family;
pub use registry::{check_name, check_uuid};
pub use targets::TARGETS;
