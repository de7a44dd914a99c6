//! Device mapper for programs on a kernel without one: the processes of `underseal dm`.
//!
//! ```text
//!   run        a command, with the library that its ioctls go through        commands/dm.rs
//!     |          or with a supervisor that the kernel asks about its system calls   supervise
//!   install    the same for a whole machine, below its root_folder
//!     |  socket
//!   back end   underseal_dm::Mapper: names, tables, nodes; a process that outlives its callers
//!     |- adopt     devices of a back end that was killed
//!     |- known     facts that a table server keeps for the next back end
//!     |- host      a load: its devices claimed, and a table server started
//!     |- layers    tags that a crypt line keeps on another device of device mapper's
//!     |- apart     processes that make system calls that may hang for ever
//!     |- lowers    one claim for each lower device, shared by all tables on it
//!     |- disks     ublk disks, which are stopped when their table servers have ended
//!     |- child     a table server, as the back end sees it; key_words: keys in its tables
//!     |     |  orders: JSON, descriptors and tables over a socket
//!     |     |- owner   which of a device's table servers has its file
//!     +- server    a table server: a process for one table, which serves it as a file or a disk
//! ```
//!
//! Each table has a process, so that a process that ends, or is killed, takes only its own device
//! away: requests for that device fail. A table that replaces another one continues with the mount
//! of the other's process.

mod adopt;
pub(crate) mod backend;
mod cgroup;
mod child;
mod disks;
mod host;
pub(crate) mod install;
mod key_words;
mod known;
mod layers;
mod lowers;
mod orders;
mod owner;
pub(crate) mod root_folder;
pub(crate) mod server;
pub(crate) mod supervise;
pub(crate) mod syscall_helper;
mod timed_line;

/// The socket beside the table's file where a table server without a back end waits for the next
/// one.
const SERVER_SOCKET: &str = "server";
