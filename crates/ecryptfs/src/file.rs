//! One lower file, read and written at positions.
//!
//! ```text
//!   View        what a mount makes of lower files: names, keys, how new files are made
//!     |
//!   OpenFile    one lower file, for all who have it open
//!     |- create, open     the header, and whether it opens
//!     |- read, write      one crypto call and one lower read or write, whatever the size
//!     |- extents, blank   what of a lower file is not there: for the tools, too
//!     |- resize           growing in encrypted zeros, shrinking, the size in the header
//!     +- sync             what fsync makes durable; Opener: one of those who have it open
//! ```
//!
//! **Order.** Data comes first and the size after it, so a write that is cut off leaves a file as
//! long as it was. A new file's header is written when the file is made; a lower file that has not
//! even that (it is empty, or all zeros) is an empty file, which gets its header with its first
//! byte. Extents are whole pages of the lower file: each is the old or the new one.

pub(crate) mod blank;
mod crypto;
pub(crate) mod extents;
mod failure;
mod open;
mod read;
mod resize;
mod sync;
mod view;
mod write;

pub use crypto::{Crypto, CryptoPolicy};
pub(crate) use failure::FsError;
pub(crate) use open::{Closing, LowerDescriptor, OpenFile, size_of};
pub(crate) use sync::Opener;
pub(crate) use view::LowerView;
pub use view::{MountKeys, Sealing};

use crate::EXTENT;

/// Whole extents that are encrypted and written together when a file grows in zeros.
const RUN: usize = 1 << 20;

const EXTENT_BYTES: u64 = EXTENT as u64;

/// Whether whoever asked for something that takes long waits for it no more.
pub(crate) type IsOver<'a> = &'a dyn Fn() -> bool;

/// The extents that a range lies in: the first, and the one after the last.
fn around(offset: u64, end: u64) -> (u64, u64) {
    (offset / EXTENT_BYTES, end.div_ceil(EXTENT_BYTES))
}

#[expect(clippy::cast_possible_truncation, reason = "a request is shorter than the address space")]
fn to_usize(len: u64) -> usize {
    len as usize
}
