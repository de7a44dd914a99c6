//! dm-integrity's format: a tag for each block, beside the data, and a journal that keeps both
//! consistent.
//!
//! ```text
//!   start      | superblock | journal, or bitmap | tags | data .. | tags | data .. |
//!                superblock         |               ^       ^          geometry
//!                                   +---- replay ---+-------+          journal/
//! ```
//!
//! A running volume is an [`IntegrityDevice`] (`device`), over the `core`, which keeps data, tags
//! and journal consistent.
//!
//! A *sector* has 512 bytes; a *block*, the unit of a tag, has 1, 2, 4 or 8 sectors. Numbers on
//! disk are little-endian.

#![forbid(unsafe_code)]

mod bitmap;
mod core;
mod device;
mod disk;
mod error;
mod format;
mod geometry;
mod hash;
mod journal;
mod open;
mod options;
mod overlay;
mod reader;
mod recalculate;
mod superblock;

pub use self::core::{IntegrityStatus, RunSettings};
pub use bitmap::Bitmap;
pub use device::IntegrityDevice;
pub use disk::{Disk, Disks};
pub use error::{Error, ErrorKind};
pub use format::{NewSuperblock, WIPE_STEP, Wipe, format, wipe};
pub use geometry::{BlockLocation, DiskSizes, SectionShape, VolumeGeometry};
pub use hash::{DISCARDED, KeyedHash, TagMaker};
pub use journal::{JournalCrypt, JournalFormat, JournalRound, ReplayPlan, ReplayResult, SectionContents};
pub use open::{OpenedVolume, look, open};
pub use options::{OpenSettings, Recalculate, WriteMode};
pub use overlay::Overlay;
pub use reader::VolumeReader;
pub use superblock::{Flags, MAX_TAG, Superblock};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
