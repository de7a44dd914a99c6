//! The superblock: 4096 bytes, of which the first 64 have values, and a MAC at the end of the first
//! sector.

use crate::disk::{self, Disk};
use crate::{Error, ErrorKind, KeyedHash, OpenSettings, Result, WriteMode};

const MAGIC: [u8; 8] = *b"integrt\0";
/// The size in bytes.
pub(crate) const SIZE: usize = 4096;
const SECTOR: usize = 512;
/// The newest known version.
const NEWEST: u8 = 6;
/// The largest tag of any kernel.
pub const MAX_TAG: u16 = 424;

/// The flags of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// The journal has a MAC in each section.
    pub const JOURNAL_MAC: Self = Self(0x1);
    /// Tags from the recalculated sector on are not made yet. The flag stays after the end.
    pub const RECALCULATING: Self = Self(0x2);
    /// The journal's area holds a bitmap.
    pub const DIRTY_BITMAP: Self = Self(0x4);
    /// A run of tags ends at 4096 bytes, not at 128 KiB.
    pub const FIXED_PADDING: Self = Self(0x8);
    /// Hashes and MACs include salt and section number, and the superblock has a MAC.
    pub const FIXED_HMAC: Self = Self(0x10);
    /// The device has inline tags.
    pub const INLINE: Self = Self(0x20);

    const NAMES: [(Self, &'static str); 6] = [
        (Self::JOURNAL_MAC, "have_journal_mac"),
        (Self::RECALCULATING, "recalculating"),
        (Self::DIRTY_BITMAP, "dirty_bitmap"),
        (Self::FIXED_PADDING, "fix_padding"),
        (Self::FIXED_HMAC, "fix_hmac"),
        (Self::INLINE, "inline"),
    ];

    /// True if all of `flags` are set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets or clears `flags`.
    pub fn set(&mut self, flags: Self, on: bool) {
        self.0 = if on { self.0 | flags.0 } else { self.0 & !flags.0 };
    }

    /// The names of the set flags, in cryptsetup's form.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| name)
    }
}

/// The contents of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// log2 of the sectors between two runs of tags; 0 with a metadata device.
    pub log2_interleave: u8,
    /// Bytes of tag for a block.
    pub tag_size: u16,
    /// Sections of the journal; 0 in inline mode only.
    pub journal_sections: u32,
    /// Sectors that the volume offered when it was last opened.
    pub provided: u64,
    /// The flags.
    pub flags: Flags,
    /// log2 of the sectors of a block.
    pub log2_block: u8,
    /// log2 of the blocks that a bit of the bitmap covers.
    pub log2_bitmap: u8,
    /// The first sector whose tag is not recalculated yet.
    pub recalculated: u64,
    /// The salt for hashes and MACs, with [`Flags::FIXED_HMAC`].
    pub salt: [u8; 16],
}

impl Superblock {
    /// Reads the superblock at sector `start`; `None` for zeros, which the kernel treats as
    /// unformatted.
    ///
    /// # Errors
    /// `Io` and `TooSmall` from the device, else as [`Superblock::parse`], and `Integrity` for a
    /// wrong MAC. The MAC is checked with `mac` (`None` in recovery, which accepts any superblock).
    pub fn read(disk: &dyn Disk, start: u64, mac: Option<&KeyedHash>) -> Result<Option<Self>> {
        let mut bytes = [0; SIZE];
        disk::read(disk, sector_offset(start)?, &mut bytes)?;
        if bytes == [0; SIZE] {
            return Ok(None);
        }
        let superblock = Self::parse(&bytes)?;
        if let Some(mac) = mac.filter(|_| superblock.has_mac())
            && mac_of(&bytes, mac)? != bytes[mac_at(mac)?..SECTOR]
        {
            let context = "the superblock's MAC is wrong: the superblock was changed, or the key of the journal's MAC is another one";
            return Err(Error::new(ErrorKind::Integrity, context));
        }
        Ok(Some(superblock))
    }

    /// Writes the superblock at sector `start` again as it is read, and syncs.
    pub(crate) fn secure(disk: &dyn Disk, start: u64) -> Result<()> {
        disk::write_again(disk, sector_offset(start)?, &mut [0; SIZE])?;
        disk::sync(disk)
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// `NoSuperblock` without the magic, `BadSuperblock` for values that no kernel writes.
    pub fn parse(bytes: &[u8; SIZE]) -> Result<Self> {
        if bytes[..8] != MAGIC {
            return Err(Error::new(ErrorKind::NoSuperblock, "there is no integrity superblock"));
        }
        let bad = |context: String| Err(Error::new(ErrorKind::BadSuperblock, context));
        let version = bytes[8];
        if version == 0 || version > NEWEST {
            return bad(format!("unknown superblock version {version} (1 to {NEWEST} are supported)"));
        }
        let superblock = Self {
            log2_interleave: bytes[9],
            tag_size: u16::from_le_bytes(field(bytes, 10)),
            journal_sections: u32::from_le_bytes(field(bytes, 12)),
            provided: u64::from_le_bytes(field(bytes, 16)),
            flags: Flags(u32::from_le_bytes(field(bytes, 24))),
            log2_block: bytes[28],
            log2_bitmap: bytes[29],
            recalculated: u64::from_le_bytes(field(bytes, 32)),
            salt: field(bytes, 48),
        };
        if superblock.log2_block > 3 {
            return bad(format!(
                "blocks of 2^{} sectors: at most 8 sectors are possible",
                superblock.log2_block
            ));
        }
        if superblock.tag_size == 0 || superblock.tag_size > MAX_TAG {
            return bad(format!("a tag size of {} bytes: 1 to {MAX_TAG} are possible", superblock.tag_size));
        }
        if superblock.log2_interleave != 0 && !(3..=31).contains(&superblock.log2_interleave) {
            return bad(format!("an interleave of 2^{} sectors", superblock.log2_interleave));
        }
        if superblock.flags.has(Flags::INLINE) != (superblock.journal_sections == 0) {
            return bad(format!("{} journal sections", superblock.journal_sections));
        }
        Ok(superblock)
    }

    /// Refuses a superblock that contradicts the options.
    ///
    /// # Errors
    /// `BadSuperblock`, which names the difference.
    pub fn check(&self, options: &OpenSettings, has_meta: bool) -> Result<()> {
        let bad = |context: String| Err(Error::new(ErrorKind::BadSuperblock, context));
        let inline = self.flags.has(Flags::INLINE);
        if inline != (options.mode == WriteMode::Inline) {
            let is = if inline { "has" } else { "does not have" };
            return bad(format!(
                "the volume {is} inline tags, but mode {} was requested",
                options.mode.letter()
            ));
        }
        if (self.log2_interleave == 0) != has_meta && !inline {
            let word = if has_meta {
                "has no metadata device: leave it out"
            } else {
                "has a metadata device: name it"
            };
            return bad(format!("the volume {word}"));
        }
        if let Some(asked) = options.tag_size.filter(|asked| *asked != self.tag_size) {
            return bad(format!("the tag size is {}, not {asked}", self.tag_size));
        }
        if let Some(asked) = options.block_size.filter(|asked| *asked != self.block_size()) {
            return bad(format!("the block size is {}, not {asked}", self.block_size()));
        }
        match (self.flags.has(Flags::JOURNAL_MAC), options.journal_mac.is_some()) {
            (true, false) => bad("the journal has a MAC: name its hash and give its key".into()),
            (false, true) => bad("the journal has no MAC: leave it out".into()),
            _ => Ok(()),
        }
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        512 << self.log2_block
    }

    /// The version of the superblock when it is written in `mode`: the kernel sets it anew each
    /// time.
    pub fn version(&self, mode: WriteMode) -> u8 {
        if self.flags.has(Flags::INLINE) {
            6
        } else if self.flags.has(Flags::FIXED_HMAC) {
            5
        } else if self.flags.has(Flags::FIXED_PADDING) {
            4
        } else if mode == WriteMode::Bitmap || self.flags.has(Flags::DIRTY_BITMAP) {
            3
        } else if self.log2_interleave == 0 || self.flags.has(Flags::RECALCULATING) {
            2
        } else {
            1
        }
    }

    /// The superblock's bytes when it is written in `mode`, with its MAC if it has one.
    ///
    /// # Errors
    /// `BadOption` for a MAC that does not fit.
    pub fn encode(&self, mode: WriteMode, mac: Option<&KeyedHash>) -> Result<[u8; SIZE]> {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.version(mode);
        bytes[9] = self.log2_interleave;
        bytes[10..12].copy_from_slice(&self.tag_size.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.journal_sections.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.provided.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.flags.0.to_le_bytes());
        bytes[28] = self.log2_block;
        bytes[29] = self.log2_bitmap;
        bytes[32..40].copy_from_slice(&self.recalculated.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.salt);
        if let Some(mac) = mac.filter(|_| self.has_mac()) {
            let made = mac_of(&bytes, mac)?;
            bytes[mac_at(mac)?..SECTOR].copy_from_slice(&made);
        }
        Ok(bytes)
    }

    /// Writes the superblock to sector `start`; the caller syncs.
    ///
    /// # Errors
    /// As [`Superblock::encode`], and `Io`.
    pub fn write(&self, disk: &dyn Disk, start: u64, mode: WriteMode, mac: Option<&KeyedHash>) -> Result<()> {
        disk::write(disk, sector_offset(start)?, &self.encode(mode, mac)?)
    }

    fn has_mac(&self) -> bool {
        self.flags.has(Flags::FIXED_HMAC) && self.flags.has(Flags::JOURNAL_MAC)
    }
}

/// The first byte of the MAC.
fn mac_at(mac: &KeyedHash) -> Result<usize> {
    let room = SECTOR - 64;
    if mac.size() > room {
        return Err(Error::new(
            ErrorKind::BadOption,
            format!("{} is too long for the superblock", mac.name()),
        ));
    }
    Ok(SECTOR - mac.size())
}

fn mac_of(bytes: &[u8; SIZE], mac: &KeyedHash) -> Result<Vec<u8>> {
    let mut made = vec![0; mac.size()];
    mac.digest(&[&bytes[..mac_at(mac)?]], &mut made);
    Ok(made)
}

fn sector_offset(sector: u64) -> Result<u64> {
    let beyond = || Error::new(ErrorKind::BadOption, format!("there is no sector {sector}"));
    sector.checked_mul(SECTOR as u64).ok_or_else(beyond)
}

fn field<const N: usize>(bytes: &[u8; SIZE], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}
