//! `underseal open --vhost-user`: the volume as a disk of a virtual machine.
//!
//! ```text
//!   disk.rs        the driver of libblkio, as one who uses the disk
//!   requests.rs    what the disk is and does: sizes, limits, every kind of request, several rings at once
//! ```

#[path = "../support/support.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests, which use all of it together")]
mod support;

mod disk;
mod requests;
