//! A lower file, read and written at positions.
//!
//! ```text
//!   View        how a mount sees lower files: names, keys, how new files are made
//!     |
//!   OpenFile    one lower file, shared by all of its opens
//!     |- create, open     the header, and whether it opens
//!     |- read, write      one crypto call and one lower read or write, whatever the size
//!     |- extents, blank   missing parts of a lower file: for the tools, too
//!     |- resize           growing in encrypted zeros, shrinking, the size in the header
//!     |- begun, version   changes of the lower file by other programs
//!     |- whole            old or new extents, also when a lower write ends inside of one
//!     +- sync             the effect of fsync; Opener: one of the opens
//! ```
//!
//! **Order.** Data comes first and the size after it, so an interrupted write leaves the file's
//! length unchanged. A new file's header is written when the file is created; a lower file without
//! a header (it is empty, or all zeros) is an empty file, which gets its header with its first
//! byte. Extents are whole pages of the lower file: each is the old or the new extent, after a
//! failed write, too.

mod begun;
pub(crate) mod blank;
mod crypto;
pub(crate) mod extents;
mod failure;
mod open;
mod read;
mod resize;
mod sync;
mod version;
mod view;
mod whole;
mod write;

pub(crate) use begun::{BegunWrite, begun_write};
pub use crypto::{Crypto, CryptoPolicy};
pub(crate) use failure::FsError;
pub(crate) use open::{Closing, LowerDescriptor, OpenFile, size_of};
pub(crate) use sync::Opener;
pub(crate) use version::FileVersion;
pub(crate) use view::LowerView;
pub use view::{MountKeys, Sealing};
pub(crate) use write::{ShortWrite, WritePlace};

use crate::EXTENT;

/// The number of bytes, in whole extents, encrypted and written together when a file grows in
/// zeros.
const RUN: usize = 1 << 20;

const EXTENT_BYTES: u64 = EXTENT as u64;

/// Returns true when the caller of a long call no longer waits for it.
pub(crate) type IsOver<'a> = &'a dyn Fn() -> bool;

/// Returns the extents of a range: the first, and the number after the last.
fn around(offset: u64, end: u64) -> (u64, u64) {
    (offset / EXTENT_BYTES, end.div_ceil(EXTENT_BYTES))
}

#[expect(clippy::cast_possible_truncation, reason = "a request is shorter than the address space")]
fn to_usize(len: u64) -> usize {
    len as usize
}
