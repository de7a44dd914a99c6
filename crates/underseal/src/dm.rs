//! Device mapper for programs on a kernel without: what `underseal dm` runs.
//!
//! ```text
//!   run        a command, with the library that its ioctls go through        commands/dm.rs
//!     |          or with a supervisor that the kernel asks about its system calls   supervise
//!   install    the same for a whole machine
//!     |  socket
//!   back end   underseal_dm::Mapper: names, tables, block nodes; a process that outlives who started it
//!     |- adopt     devices of a back end that was killed
//!     |- known     what a table server keeps for the next back end
//!     |- host      a load: its devices claimed, and a table server started
//!     |- layers    tags that a crypt line keeps on another device of device mapper's
//!     |- lowers    one claim for each lower device, shared by all tables on it
//!     |- child     a table server, as the back end sees it
//!     |     |  orders: JSON, descriptors and tables over a socket
//!     |     |- owner   which of a device's table servers has its file
//!     +- server    a table server: a process for one table, which serves it as a file
//! ```
//!
//! A table has a process of its own, so that one which ends, or is killed, takes its own device
//! away and no other: requests for it fail. A table that takes the place of another goes on with
//! the other process's mount.

mod adopt;
pub(crate) mod backend;
mod cgroup;
mod child;
mod host;
pub(crate) mod install;
mod known;
mod layers;
mod lowers;
mod orders;
mod owner;
pub(crate) mod server;
pub(crate) mod supervise;

/// Where a table server whose back end is gone waits for the next one, beside the table's file.
const SERVER_SOCKET: &str = "server";
