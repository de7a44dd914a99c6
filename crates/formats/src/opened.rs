//! An unlocked volume of any of the formats.

use underseal_cipher::Key;
use underseal_volume::{Guard, Volume};

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
    /// The header's facts, with those that only the secret reveals.
    pub facts: Facts,
}
