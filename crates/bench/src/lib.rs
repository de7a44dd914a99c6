//! Measurements of the code's cost, beside the processor's limits and other programs.
//!
//! Each measurement passes its rows to an [`Observer`] as they are finished.
//!
//! ```text
//!   cipher()                    rows: our CPU paths and the peers, each group with its limits
//!     +-- measure               interleaved medians: every subject in every round
//!     +-- limits                bare AES rounds; memory that is only touched
//!     +-- peers                 AWS-LC and OpenSSL, sector by sector (build features)
//!   aead()                      rows: authenticated sectors, whole requests beside a sector a call
//!   fio                         the client of most of the measurements below, and its report
//!   nbd()                       rows: our server, qemu-nbd and nbdkit under the same client
//!   ecryptfs()                  rows: the extents of a request at once, beside one by one
//!   fuse()                      rows: our mount, fuser over memory, nbdfuse, qemu-storage-daemon
//!   integrity()                 rows: our volumes with tags and the one without, over NBD and FUSE
//!   ublk()                      rows: our block device and dm-crypt's, on RAM disks
//!   rbd()                       rows: our volume on a Ceph image, librbd's encryption, and neither
//!   reencrypt()                 rows: our reencryption of a closed volume and cryptsetup's
//!   unlock()                    rows: our unlock of a keyslot and cryptsetup's: time and memory
//!   formats()                   rows: VeraCrypt's chains and search, BitLocker's stretch
//!   vhost_user()                rows: our disk of a virtual machine and qemu-storage-daemon's
//! ```

#![deny(unsafe_code)]

mod aead;
mod cipher;
mod comparison;
mod ecryptfs;
mod fio;
mod formats;
mod fuse;
mod integrity;
mod limits;
mod machine;
mod measure;
mod nbd;
mod observer;
mod peers;
mod place;
mod range;
mod rbd;
mod reencrypt;
mod report;
mod rounds;
mod ublk;
mod unlock;
mod vhost_user;

pub use aead::aead;
pub use cipher::cipher;
pub use comparison::ServerRow;
pub use ecryptfs::{
    CryptoRow, EcryptfsReport, MountBenchOptions, MountReport, ecryptfs, ecryptfs_mount, serve_bare_mount,
};
pub use fio::FioResult;
pub use formats::{FormatsBenchOptions, formats};
pub use fuse::{FuseOptions, FuseReport, fuse, serve_fuse_memory, serve_null_memory};
pub use integrity::{IntegrityBenchOptions, IntegrityReport, IntegrityRow, integrity};
pub use machine::Machine;
pub use measure::{Effort, Subject, ThroughputSample, TimedCall, rates};
pub use nbd::{NbdError, NbdOptions, NbdReport, NbdWorkload, nbd, serve_memory};
pub use observer::Observer;
pub use range::Range;
pub use rbd::{DriveOptions, DriveSubject, RbdOptions, RbdReport, drive_rbd, rbd};
pub use reencrypt::{ReencryptOptions, ReencryptReport, reencrypt};
pub use report::{CipherRow, Report, Scaling};
pub use rounds::InterleavedRounds;
pub use ublk::{UblkOptions, UblkReport, ublk};
pub use unlock::{UnlockBenchOptions, UnlockReport, unlock};
pub use vhost_user::{VhostUserOptions, VhostUserReport, vhost_user};
