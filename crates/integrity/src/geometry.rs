//! The positions of superblock, journal, data, and the runs of tags between the data.

use crate::superblock::MAX_TAG;
use crate::{Error, ErrorKind, Flags, OpenSettings, Result, Superblock};

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of a sector, as `usize`.
pub(crate) const SECTOR_BYTES: usize = 512;
/// Sectors of the superblock.
const SUPERBLOCK: u64 = 8;
/// The unit of a run of tags, in bytes.
const PADDING: u64 = 4096;
/// The unit of a run of tags with legacy padding.
const LEGACY_PADDING: u64 = 131_072;
/// Sectors of metadata at the beginning of a journal section.
pub(crate) const METADATA_SECTORS: usize = 8;
/// Bytes of a journal sector before its commit id.
pub(crate) const JOURNAL_SECTOR: usize = 504;
/// Bytes of a section's MAC in each of its metadata sectors.
pub(crate) const MAC_PART: usize = 8;

/// The sizes of the devices, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSizes {
    /// The data device.
    pub data: u64,
    /// The metadata device.
    pub meta: Option<u64>,
}

/// The shape of a journal section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionShape {
    /// Bytes of an entry.
    pub entry_size: usize,
    /// Entries in each of the 8 metadata sectors.
    pub entries_per_sector: usize,
    /// Sectors of a block, which are an entry's data.
    pub block_sectors: usize,
    /// The section has a MAC.
    pub has_mac: bool,
}

impl SectionShape {
    /// The shape for blocks of `2^log2_block` sectors.
    ///
    /// # Errors
    /// `BadOption` for tags that do not fit into a journal.
    pub fn new(log2_block: u8, tag_size: u16, has_mac: bool) -> Result<Self> {
        if log2_block > 3 || tag_size == 0 || tag_size > MAX_TAG {
            let context =
                format!("there are no tags of {tag_size} bytes for blocks of 2^{log2_block} sectors");
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let block_sectors = 1 << log2_block;
        let entry_size = (8 + 8 * block_sectors + usize::from(tag_size)).next_multiple_of(8);
        let room = JOURNAL_SECTOR - if has_mac { MAC_PART } else { 0 };
        Ok(Self { entry_size, entries_per_sector: room / entry_size, block_sectors, has_mac })
    }

    /// Entries of a section.
    pub fn entries(&self) -> usize {
        METADATA_SECTORS * self.entries_per_sector
    }

    /// Sectors of a section.
    pub fn sectors(&self) -> usize {
        METADATA_SECTORS + self.entries() * self.block_sectors
    }

    /// Bytes of a section.
    pub fn bytes(&self) -> usize {
        self.sectors() * SECTOR_BYTES
    }
}

/// The arrangement of data and tags on the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Areas of `2^log2` sectors of data, with a run of tags before each.
    Interleaved { log2: u8, run: u64 },
    /// The tags in one run on the metadata device.
    Apart,
    /// The device has inline tags.
    Inline,
}

/// The position of a block on the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLocation {
    /// The byte of the data on the data device.
    pub data: u64,
    /// The byte of the block's tag on the metadata device; without meaning in inline mode.
    pub tag: u64,
    /// The number of sectors from there on for which data and tags are contiguous.
    pub sectors: u64,
}

/// The positions of all parts. They are within the devices for which the geometry was made, and
/// within 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeGeometry {
    start: u64,
    provided: u64,
    tag_size: u16,
    log2_block: u8,
    sections: u32,
    section: SectionShape,
    layout: Layout,
}

impl VolumeGeometry {
    /// Computes the geometry of a volume on devices of these sizes. The volume's size is computed
    /// anew, as the kernel does.
    ///
    /// # Errors
    /// `TooSmall` when the volume does not fit; `Unsupported` for the geometry in which the kernel
    /// puts tags over data.
    pub fn new(superblock: &Superblock, options: &OpenSettings, sizes: DiskSizes) -> Result<Self> {
        let has_mac = superblock.flags.has(Flags::JOURNAL_MAC);
        let section = SectionShape::new(superblock.log2_block, superblock.tag_size, has_mac)?;
        let layout = layout(superblock, options.buffer_sectors, sizes.meta.is_some())?;
        let mut geometry = Self {
            start: options.start,
            provided: 0,
            tag_size: superblock.tag_size,
            log2_block: superblock.log2_block,
            sections: superblock.journal_sections,
            section,
            layout,
        };
        geometry.provided = geometry.capacity(sizes)?;
        Ok(geometry)
    }

    /// The volume's size in sectors.
    pub fn provided(&self) -> u64 {
        self.provided
    }

    /// The sector of the superblock.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of a tag.
    pub fn tag_size(&self) -> usize {
        usize::from(self.tag_size)
    }

    /// Sectors of a block.
    pub fn block_sectors(&self) -> u64 {
        1 << self.log2_block
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        512 << self.log2_block
    }

    /// The number of journal sections.
    pub fn sections(&self) -> u32 {
        self.sections
    }

    /// The shape of each section.
    pub fn section(&self) -> &SectionShape {
        &self.section
    }

    /// The first byte of the journal, or the bitmap, on the metadata device.
    pub fn journal_offset(&self) -> u64 {
        (self.start + SUPERBLOCK) * SECTOR
    }

    /// Bytes of the journal.
    pub fn journal_bytes(&self) -> u64 {
        u64::from(self.sections) * self.section.bytes() as u64
    }

    /// The first byte of section `index` of the journal.
    pub fn section_offset(&self, index: u32) -> u64 {
        self.journal_offset() + u64::from(index) * self.section.bytes() as u64
    }

    /// Sectors from the superblock to the first run of tags, or the data.
    pub fn initial(&self) -> u64 {
        SUPERBLOCK + self.journal_bytes() / SECTOR
    }

    /// Sectors between two runs of tags; `None` for volumes with tags elsewhere.
    pub fn interleave(&self) -> Option<u64> {
        match self.layout {
            Layout::Interleaved { log2, .. } => Some(1 << log2),
            _ => None,
        }
    }

    /// Sectors of a run of tags; `None` for volumes with tags elsewhere.
    pub fn run(&self) -> Option<u64> {
        match self.layout {
            Layout::Interleaved { run, .. } => Some(run),
            _ => None,
        }
    }

    /// The position of a sector of the volume.
    pub fn place(&self, sector: u64) -> BlockLocation {
        debug_assert!(sector < self.provided, "sector {sector} of {}", self.provided);
        let base = self.start + self.initial();
        let tag = |sector: u64| (sector >> self.log2_block) * u64::from(self.tag_size);
        match self.layout {
            Layout::Interleaved { log2, run } => {
                let (area, within) = (sector >> log2, sector & ((1 << log2) - 1));
                let tags = base + (area << log2) + area * run;
                BlockLocation {
                    data: (tags + run + within) * SECTOR,
                    tag: tags * SECTOR + tag(within),
                    sectors: ((1 << log2) - within).min(self.provided - sector),
                }
            }
            Layout::Apart => BlockLocation {
                data: sector * SECTOR,
                tag: base * SECTOR + tag(sector),
                sectors: self.provided - sector,
            },
            Layout::Inline => {
                BlockLocation { data: (base + sector) * SECTOR, tag: 0, sectors: self.provided - sector }
            }
        }
    }

    /// Refuses to write tags where [`BlockLocation::tag`] has no meaning.
    pub(crate) fn check_tags_have_places(&self) -> Result<()> {
        if self.layout == Layout::Inline {
            let context =
                "the volume's tags are inline on its device: they are made only while the volume runs";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
    }

    /// The largest number of sectors that fits.
    fn capacity(&self, sizes: DiskSizes) -> Result<u64> {
        let data = sizes.data / SECTOR;
        let metadata = sizes.meta.map_or(data, |meta| meta / SECTOR);
        let small = |what: &str| {
            let context = format!(
                "the {what} of {metadata} sectors is too small for {} sectors of metadata",
                self.initial()
            );
            Error::new(ErrorKind::TooSmall, context)
        };
        if self.initial() + SUPERBLOCK >= metadata
            || self.initial() > u64::from(u32::MAX)
            || self.start > metadata
        {
            return Err(small("device"));
        }
        let base = self.start + self.initial();
        let provided = match self.layout {
            Layout::Interleaved { log2, run } => {
                // The last sector's position grows with the number of sectors: the largest number
                // that fits is found bit by bit.
                let fits = |provided: u64| {
                    let (last, run) = (u128::from(provided - 1), u128::from(run));
                    u128::from(base) + ((last >> log2) + 1) * run + last < u128::from(data)
                };
                let bits = (3..u64::BITS).rev().map(|bit| 1 << bit);
                bits.fold(0, |found, bit| if fits(found | bit) { found | bit } else { found })
            }
            Layout::Apart => {
                let provided = data & !(self.block_sectors() - 1);
                let tags = u128::from(provided >> self.log2_block) * u128::from(self.tag_size);
                // The kernel reads tags in units of 8 sectors.
                let end = u128::from(base) + tags.div_ceil(u128::from(PADDING)) * 8;
                if end > u128::from(metadata) {
                    return Err(small("metadata device"));
                }
                provided
            }
            Layout::Inline => data.saturating_sub(base) & !7,
        };
        if provided == 0 {
            return Err(small("device"));
        }
        Ok(provided)
    }
}

fn layout(superblock: &Superblock, buffer_sectors: u32, has_meta: bool) -> Result<Layout> {
    if superblock.flags.has(Flags::INLINE) {
        return Ok(Layout::Inline);
    }
    if has_meta {
        return Ok(Layout::Apart);
    }
    let log2 = superblock.log2_interleave;
    if log2 == 0 {
        return Err(Error::new(ErrorKind::BadOption, "the data is on a separate device: pass --data-device"));
    }
    if !(3..=31).contains(&log2) {
        return Err(Error::new(ErrorKind::BadSuperblock, format!("an interleave of 2^{log2} sectors")));
    }
    let fixed = superblock.flags.has(Flags::FIXED_PADDING);
    let padding = if fixed { PADDING } else { LEGACY_PADDING };
    let tags = u64::from(superblock.tag_size) << (log2 - superblock.log2_block);
    let run = tags.next_multiple_of(padding) / SECTOR;
    // The number of a buffer of tags is its sector without the low bits, so these bits must be
    // zero.
    let buffer = buffer_sectors.max(1).ilog2().min(run.trailing_zeros());
    if u32::from(log2) < buffer {
        let context = format!(
            "the kernel puts tags over data in this geometry: an interleave of {} sectors with legacy padding and buffers of {} \
             sectors. Such a volume loses data; with buffers of {0} sectors it would not",
            1 << log2,
            1u64 << buffer
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(Layout::Interleaved { log2, run })
}
