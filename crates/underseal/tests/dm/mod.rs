//! Debian's own cryptsetup and dmsetup over a device mapper that is not the kernel's.
//!
//! ```text
//!   mapper.rs      a device mapper of a test's own: `underseal dm run` with a folder of its own
//!   authenticated.rs  volumes with tags
//!   integrity.rs   integritysetup's options, beside a kernel's dm-integrity
//!   install.rs     files that give a whole machine the device mapper
//!   lvm.rs         logical volumes, and the partitions of an image
//!   supervise.rs   static programs, and callers that hang (silent.rs: a file without answers)
//!   keys.rs        keys of the kernel's keyring in tables
//!   targets.rs     stripes, delays, hash trees
//!   cryptsetup.rs  volumes that cryptsetup makes, opens, suspends, resizes and closes
//!   dmsetup.rs     what dmsetup prints, and tables that take the place of others
//!   faults.rs      hostile callers, processes that are killed
//!   hangs.rs       lower devices and servers that do not answer
//!   killed.rs      back ends that are killed while something is half done
//!   unwritable.rs  a folder of devices that has no room
//! ```

mod authenticated;
mod cryptsetup;
mod dmsetup;
mod faults;
mod hangs;
mod install;
mod integrity;
mod keys;
mod killed;
mod lvm;
pub(crate) mod mapper;
mod silent;
mod supervise;
mod targets;
mod unwritable;
