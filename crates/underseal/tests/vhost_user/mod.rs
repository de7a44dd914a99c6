//! `underseal open --vhost-user`: the volume as a disk of a virtual machine.
//!
//! ```text
//!   disk.rs        the driver of libblkio, as a user of the disk
//!   front.rs       a front end for cases that a real one cannot make
//!   requests.rs    the disk's behaviour: sizes, limits, every kind of request, several rings
//!   hostile.rs     chains and rings that break the rules, drivers that never rest
//!   messages.rs    messages and memory that break them
//!   sessions.rs    front ends that come, go, die, return; the server stopped, closed, suspended
//!   recovery.rs    a server that is killed, and its requests in flight
//!   resize.rs      a disk that gets another size
//!   upgrade.rs     another process replaces the disk's server, or fails to
//!   upgrade_killed.rs  the same, and it is killed
//!   writes.rs      the writes of these tests
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
