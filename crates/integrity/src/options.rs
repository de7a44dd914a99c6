//! The options for opening a volume, which are not in its superblock.

use crate::{Error, ErrorKind, JournalCrypt, KeyedHash, Result, Superblock};

/// The order of a write's parts, and its state after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// `J`: data and tags go through the journal, so that both are there or neither.
    Journal,
    /// `B`: in place; a bitmap has the regions whose tags are to be recalculated after a power cut.
    Bitmap,
    /// `D`: in place, without protection from a power cut.
    Direct,
    /// `R`: read only, without verification, replay or changes.
    Recovery,
    /// `I`: the device has a tag for each block.
    Inline,
}

impl WriteMode {
    /// The character in table lines.
    pub fn letter(self) -> char {
        match self {
            Self::Journal => 'J',
            Self::Bitmap => 'B',
            Self::Direct => 'D',
            Self::Recovery => 'R',
            Self::Inline => 'I',
        }
    }

    /// The mode of a character in a table line.
    pub fn from_letter(letter: char) -> Option<Self> {
        [Self::Journal, Self::Bitmap, Self::Direct, Self::Recovery, Self::Inline]
            .into_iter()
            .find(|mode| mode.letter() == letter)
    }
}

/// Whether tags are recalculated from the existing data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recalculate {
    /// Only where a recalculation was begun, or for regions of the bitmap.
    #[default]
    AsNeeded,
    /// Begin a recalculation, unless one was begun before.
    Begin,
    /// From the first block on, whatever was done before.
    Reset,
}

/// The options for opening a volume. None of them is in the superblock, except the values that
/// `tag_size` and `block_size` check.
#[derive(Debug, Clone)]
pub struct OpenSettings {
    /// The mode.
    pub mode: WriteMode,
    /// Sectors before the superblock.
    pub start: u64,
    /// Makes the tags; `None`: the layer above does.
    pub hash: Option<KeyedHash>,
    /// The MAC of the journal's sector numbers, and of the superblock.
    pub journal_mac: Option<KeyedHash>,
    /// The cipher of the journal.
    pub journal_crypt: Option<JournalCrypt>,
    /// The tag size that the superblock must have.
    pub tag_size: Option<u16>,
    /// The block size in bytes that the superblock must have.
    pub block_size: Option<u32>,
    /// The number of sectors of tags in a read. It affects the tags' positions, see
    /// [`crate::VolumeGeometry`].
    pub buffer_sectors: u32,
    /// Discards are allowed, and discarded blocks are read without a matching tag.
    pub allow_discards: bool,
    /// Whether tags are recalculated.
    pub recalculate: Recalculate,
    /// Tags are recalculated even where that authenticates a forger's data.
    pub legacy_recalculate: bool,
    /// Sectors of a bit of the bitmap; `None`: the kernel's default.
    pub sectors_per_bit: Option<u64>,
    /// With a metadata device, growth of the data device is recorded at the first write to it. The
    /// kernel records it at the opening, and a wrong, larger device then rules out the right one.
    pub defers_growth: bool,
    /// The superblock for recovery of a volume without one.
    pub missing: Option<Superblock>,
}

impl OpenSettings {
    /// Refuses contradictions.
    ///
    /// # Errors
    /// `BadOption`, which names the contradiction.
    pub fn check(&self, has_meta: bool) -> Result<()> {
        let bad = |context: &str| Err(Error::new(ErrorKind::BadOption, context));
        let recalculates = self.recalculate != Recalculate::AsNeeded;
        if self.hash.is_none() {
            match self.mode {
                WriteMode::Bitmap => return bad("the bitmap needs a hash, to make tags anew"),
                WriteMode::Inline => return bad("inline tags need a hash that makes them"),
                _ if self.allow_discards => {
                    return bad("discards need a hash, whose tags mark discarded blocks");
                }
                _ if recalculates => return bad("a recalculation needs a hash"),
                _ => {}
            }
        }
        if self.mode == WriteMode::Inline {
            let has_journal = self.journal_mac.is_some() || self.journal_crypt.is_some();
            return match () {
                () if has_meta => bad("inline tags and a metadata device exclude each other"),
                () if has_journal => {
                    bad("with inline tags there is no journal that could be encrypted or have a MAC")
                }
                () if self.allow_discards => bad("with inline tags there are no discards"),
                () => Ok(()),
            };
        }
        Ok(())
    }

    /// The kernel's defaults in this mode, for tags from the layer above.
    pub fn new(mode: WriteMode) -> Self {
        Self {
            mode,
            start: 0,
            hash: None,
            journal_mac: None,
            journal_crypt: None,
            tag_size: None,
            block_size: None,
            buffer_sectors: 128,
            allow_discards: false,
            recalculate: Recalculate::AsNeeded,
            legacy_recalculate: false,
            sectors_per_bit: None,
            defers_growth: false,
            missing: None,
        }
    }
}
