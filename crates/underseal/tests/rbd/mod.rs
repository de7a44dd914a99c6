//! Volumes on images of a Ceph cluster, through its own library.
//!
//! ```text
//!   cluster.rs     the cluster that is given, and images on it
//!   own.rs         a cluster of the test's own, to be broken
//!   faults.rs      disks that are killed or full, a stopped monitor, a cut network, a volume that
//!                  cannot be closed
//!   writer.rs      writes that continue through faults, and are all verified afterwards
//!   `doors.rs`     mounts and disks of virtual machines
//!   verbs.rs       everything that is done with a volume, and what librbd made
//!   sharing.rs     second writers, clients that are shut out, snapshots, sizes that change
//!   refusals.rs    refused images, and the error messages; most of it without any cluster
//! ```

pub(crate) mod cluster;
mod doors;
mod faults;
mod own;
mod refusals;
mod sharing;
mod verbs;
mod writer;
