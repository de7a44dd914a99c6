//! An unlocked volume of any of the formats.

use std::ops::Range;

use underseal_cipher::Key;
use underseal_volume::Volume;

use crate::{Facts, Format};

/// An unlocked volume: its segments, and the rules of its format about writes.
#[derive(Debug)]
pub struct OpenedFormat {
    /// The format.
    pub format: Format,
    /// The segments. Discards are off; the caller turns them on.
    pub volume: Volume,
    /// Why the volume must not be written to, in words that follow "it is read-only: ". None:
    /// writes are safe.
    pub read_only: Option<&'static str>,
    /// Ranges of the volume that must not change.
    pub guards: Vec<Guard>,
    /// The volume key in cryptsetup's form: cipher key, then tweak or IV key, cipher by cipher.
    pub volume_key: Key,
    /// The header's facts, with those that only the secret shows.
    pub facts: Facts,
}

/// A range of a volume that must not be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The bytes of the volume.
    pub range: Range<u64>,
    /// The consequence of a write to the range.
    pub rule: GuardRule,
}

/// The consequence of a write, discard or request for zeros that touches a guarded range. The
/// request fails before any byte is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardRule {
    /// The request fails.
    Refuse,
    /// The request fails, and so does every later one that would change the volume, until it is
    /// opened again.
    RefuseAll,
}
