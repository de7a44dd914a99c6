//! `underseal ecryptfs mount` and a power cut, or a server that is killed, in the middle of
//! everything.
//!
//! ```text
//!   writer.rs   creates, appends, overwrites, cuts, grows, renames over, removes; fsync at random
//!     |             and keeps in expected.rs what each file may be afterwards
//!     v
//!   underseal ecryptfs mount            killed.rs  SIGKILL: no acknowledged write is lost
//!     |
//!   ext4, xfs, btrfs on a loop device   cuts.rs    the power is cut, the filesystem recovers: the
//!     |                                            fsynced part is there, the rest is old or new,
//!     |                                            all files open
//!   disk.rs: a file through FUSE, in this process, with a volatile cache that loses random blocks
//! ```
//! tools.rs: import, rewrap, convert, rename-tree and export, with a power cut after each, and a
//! disk that fails. durable.rs: cuts without fsync; fdatasync and sizes, on a disk that is looked
//! at at once. stacked.rs: both on overlayfs and FUSE over the disk.
//! losses.rs: a disk that fails to write. blank.rs: lower files of zeros, as ext4 leaves new ones
//! that had no fsync.
//!
//! `UNDERSEAL_ROUNDS` says how many power cuts or kills each test makes, in place of the few that
//! it makes by default. With `UNDERSEAL_BARE` the same programs use the lower filesystem itself:
//! what it loses there is not eCryptfs's fault.

mod blank;
mod check;
mod cuts;
pub(crate) mod disk;
mod durable;
mod expected;
mod killed;
mod losses;
mod stacked;
mod tools;
mod writer;

/// The number of rounds of a test.
fn rounds(usual: u64) -> u64 {
    let given = std::env::var("UNDERSEAL_ROUNDS").ok();
    given.map_or(usual, |given| given.parse().expect("UNDERSEAL_ROUNDS is a number"))
}
