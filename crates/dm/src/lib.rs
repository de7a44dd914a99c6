//! Device mapper's ioctls, answered in userspace.
//!
//! ```text
//!   server     a socket for callers of ioctl(2): the preloaded library       crates/dm-preload
//!     |  supervised           what the memory of a program says that a supervisor answers
//!     |  header, records      the structure and the data behind it, without I/O
//!     v
//!   Mapper     the commands, by number: create, load, resume, status, remove ..
//!     |- registry   names, UUIDs and numbers
//!     |- keys       keys of the keyring in tables
//!     |- device     one device: live table, inactive table, suspended, events
//!     |
//!     +-- Host      loads tables: in the command, a process for each     crates/underseal/src/dm
//!     |     Served  a ready table: shown as a file or a disk, handed over, suspended, ended
//!     +-- Nodes     block devices
//!           loops   loop devices over those files
//!           ublk    ublk disks that the tables' servers serve
//!           names   what the system shows of either; links: names in /dev; opens, disk_users:
//!                   their openers; holders: which lie on which; left: devices of a killed server
//! ```
//!
//! The sources of the answers are include/uapi/linux/dm-ioctl.h and the behaviour of
//! drivers/md/dm-ioctl.c, Linux 6.12.

#![deny(unsafe_code)]

mod device;
mod disk_users;
mod error;
pub mod header;
mod holders;
mod host;
mod keys;
mod left;
mod links;
mod loops;
mod mapper;
mod names;
mod node_name;
mod number;
mod opens;
pub mod records;
mod registry;
pub mod script;
mod sender;
pub mod server;
pub mod supervised;
mod targets;
mod ublk;

pub use error::{Error, Result};
pub use host::{Given, Host, Messaged, Names, Node, Nodes, Room, Served, Table, TableLoad, UblkDisk};
pub use keys::GrantedKeys;
pub use left::LeftNode;
pub use loops::{Attachment, LoopNodes, LoopStep, LoopWork, LoopWorker};
pub use mapper::{Caller, Command, Mapper};
pub use names::OWNER_FILE;
pub use number::DeviceNumber;
pub use opens::{Family, openers};
pub use registry::check_name;
pub(crate) use registry::check_uuid;
pub use targets::TARGETS;
pub use ublk::{UblkDriver, UblkNodes};
