//! `underseal open --fuse`: the plain volume as a file, used by real programs.
//!
//! ```text
//!   mounted.rs     the server of a mount: waited for, stopped, killed; clients that never hang
//!   files.rs       the file's behaviour: sizes, writes of all kinds, holes, folders, NBD beside it
//!   fio.rs         random requests by several threads, written, read and verified
//!   filesystems.rs loop devices with ext4, xfs and btrfs
//!   crowd.rs       threads that sleep in reads, and orders for them
//!   ending.rs      unmounted, stopped, stopped while in use, killed
//!   io_uring.rs    requests through io_uring, and when not
//!   desktop.rs     shown on the desktop by udisks, which may lie; folders that strangers made
//!   control.rs     under an operator's hands: status, suspended, closed
//!   resize.rs      grown and shrunk while it is mounted
//!   swapped.rs     the mount point is replaced, before and while it is mounted
//!   user.rs        all of it by another user than root, through fusermount3
//!   refusals.rs    paths and systems where nothing can be mounted
//! ```

mod control;
mod crowd;
mod desktop;
mod ending;
mod files;
mod filesystems;
mod fio;
mod io_uring;
pub(crate) mod mounted;
mod refusals;
mod resize;
mod swapped;
mod user;
