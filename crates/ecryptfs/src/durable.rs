//! Calls that make writes to a lower filesystem durable.
//!
//! A filesystem on a disk of its own writes all of it back on `syncfs`, and a range of a file on
//! `sync_file_range`. A filesystem on another one, or on a server, may do neither: FUSE gives its
//! pages to the server and never asks it to sync; the pages of a file on overlayfs are another
//! file's. `fsync` of each file and folder is enough on all of them.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;

/// The types of the filesystems on a disk of their own, as in `statfs`: ext2 to ext4, xfs, btrfs,
/// f2fs, bcachefs; and of those in memory, tmpfs and ramfs, where nothing is durable.
const ON_OWN_DISK: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994, 0x8584_58f6];

/// Returns true for a file whose filesystem is known to write all of it back on `syncfs` and
/// `sync_file_range`. The descriptor may be O_PATH.
pub(crate) fn is_on_own_disk(file: impl AsFd) -> bool {
    kind(file).is_some_and(|kind| ON_OWN_DISK.contains(&kind))
}

/// Returns true for a file on overlayfs, which copies files on their first change. The descriptor
/// may be O_PATH.
pub(crate) fn is_overlay(file: impl AsFd) -> bool {
    kind(file) == Some(OVERLAY)
}

const OVERLAY: u64 = 0x794c_7630;

fn kind(file: impl AsFd) -> Option<u64> {
    #[allow(clippy::unnecessary_cast, reason = "f_type's width and sign differ between architectures")]
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a number of 32 bits")]
    fstatfs(file).ok().map(|about| u64::from(about.f_type as u32))
}
