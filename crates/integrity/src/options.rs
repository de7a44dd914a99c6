//! How a volume is opened: what its superblock does not say.

use crate::{Error, ErrorKind, JournalCrypt, KeyedHash, Result, Superblock};

/// What becomes of a write, and of the volume when the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// `J`: data and tags go through the journal, so that both are there or neither.
    Journal,
    /// `B`: in place; a bitmap says where tags have to be made anew after a power cut.
    Bitmap,
    /// `D`: in place, and nothing protects from a power cut.
    Direct,
    /// `R`: read only, nothing is verified, replayed or changed.
    Recovery,
    /// `I`: the device itself keeps a tag beside each block.
    Inline,
}

impl WriteMode {
    /// The letter of table lines.
    pub fn letter(self) -> char {
        match self {
            Self::Journal => 'J',
            Self::Bitmap => 'B',
            Self::Direct => 'D',
            Self::Recovery => 'R',
            Self::Inline => 'I',
        }
    }

    /// The mode that a table line means.
    pub fn from_letter(letter: char) -> Option<Self> {
        [Self::Journal, Self::Bitmap, Self::Direct, Self::Recovery, Self::Inline]
            .into_iter()
            .find(|mode| mode.letter() == letter)
    }
}

/// Whether tags are made anew from the data that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recalculate {
    /// Only where it was begun, or where the bitmap says so.
    #[default]
    AsNeeded,
    /// Begin, unless it was begun before.
    Begin,
    /// From the first block on, whatever was done before.
    Reset,
}

/// How a volume is opened. Nothing of this stands in the superblock but what `tag_size` and
/// `block_size` check.
#[derive(Debug, Clone)]
pub struct OpenSettings {
    /// The mode.
    pub mode: WriteMode,
    /// Sectors before the superblock.
    pub start: u64,
    /// What makes the tags. None: whoever is above brings them along.
    pub hash: Option<KeyedHash>,
    /// What protects the journal's sector numbers, and the superblock.
    pub journal_mac: Option<KeyedHash>,
    /// What encrypts the journal.
    pub journal_crypt: Option<JournalCrypt>,
    /// The tag size that the superblock must have.
    pub tag_size: Option<u16>,
    /// The block size in bytes that the superblock must have.
    pub block_size: Option<u32>,
    /// How many sectors of tags are read at once. It matters for where tags lie, see
    /// [`crate::VolumeGeometry`].
    pub buffer_sectors: u32,
    /// Discards are taken, and what was discarded reads without a tag of its own.
    pub allow_discards: bool,
    /// Whether tags are made anew.
    pub recalculate: Recalculate,
    /// Tags are made anew even where that lets a forger have his data authenticated.
    pub legacy_recalculate: bool,
    /// How many sectors a bit of the bitmap covers; none: as large as the kernel's default.
    pub sectors_per_bit: Option<u64>,
    /// What to go by in recovery where no superblock is left.
    pub missing: Option<Superblock>,
}

impl OpenSettings {
    /// Refuses what does not go together.
    ///
    /// # Errors
    /// `BadOption`, which says what.
    pub fn check(&self, has_meta: bool) -> Result<()> {
        let bad = |context: &str| Err(Error::new(ErrorKind::BadOption, context));
        let recalculates = self.recalculate != Recalculate::AsNeeded;
        if self.hash.is_none() {
            match self.mode {
                WriteMode::Bitmap => return bad("the bitmap needs a hash, to make tags anew"),
                WriteMode::Inline => return bad("inline tags need a hash that makes them"),
                _ if self.allow_discards => {
                    return bad("discards need a hash: without one nobody can tell what was discarded");
                }
                _ if recalculates => return bad("there is no hash that tags could be made anew with"),
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

    /// The kernel's defaults in this mode, for tags that are brought along.
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
            missing: None,
        }
    }
}
