//! `underseal open --vhost-user`: the volume as a disk of a virtual machine.
//!
//! ```text
//!   disk.rs        the driver of libblkio, as one who uses the disk
//!   front.rs       a front end that does exactly what it is told
//!   requests.rs    what the disk is and does: sizes, limits, every kind of request, several rings at once
//!   hostile.rs     chains and rings that break the rules, drivers that never rest
//!   messages.rs    messages and memory that break them
//!   sessions.rs    front ends that come, go, die and come again; the server stopped, closed, suspended
//!   recovery.rs    a server that is killed, and what was in flight
//!   resize.rs      a disk that gets another size
//!   upgrade.rs     another process takes the disk over, or fails to
//!   upgrade_killed.rs  the same, and it is killed
//!   writes.rs      what these write meanwhile
//!   machine.rs     QEMU: the plug pulled, the server killed; ../guest/ boots it
//! ```

pub(crate) mod disk;
mod front;
mod hostile;
mod machine;
mod messages;
mod recovery;
mod requests;
mod resize;
mod sessions;
mod upgrade;
mod upgrade_killed;
mod writes;
