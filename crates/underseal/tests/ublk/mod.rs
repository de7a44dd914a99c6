//! Volumes in a machine with a full kernel, where they are block devices.
//!
//! ```text
//!   ../guest/    boots the machine
//!   machine.rs   the machine itself: tasks, waiting, the plug
//!   boots.rs     which subjects share a machine; the subjects are below
//!   tasks.rs     what tasks share; serve.sh is its half in the guest
//!   bench.rs     `underseal-lab bench ublk`, when asked for
//!   absent.rs    machines without ublk
//!   disk.rs      the block device is what the volume is
//!   older.rs     what an older kernel does otherwise
//!   zoned.rs     volumes on zoned disks have zones
//!   recovery.rs  servers that are killed, stopped, replaced; half.py dies while it recovers
//!   mapper.rs    devices of `underseal dm` that are ublk disks
//!   upgrade.rs   servers that hand over; writer.py looks at the clock
//! ```

mod absent;
mod bench;
pub(crate) mod boots;
mod disk;
mod machine;
mod mapper;
mod older;
mod recovery;
pub(crate) mod tasks;
mod upgrade;
mod zoned;
