//! Makes a volume: superblock and an empty journal; and tags for data of zeros.

use std::ops::Range;

use crate::disk::{self, Disks};
use crate::geometry::SECTOR;
use crate::superblock::MAX_TAG;
use crate::{
    Bitmap, DiskSizes, Error, ErrorKind, Flags, JournalFormat, JournalRound, OpenSettings, Result,
    SectionShape, Superblock, TagMaker, VolumeGeometry, WriteMode,
};

/// The kernel's largest default journal, in sectors.
const LARGEST_JOURNAL: u64 = 131_072;
/// The kernel's default interleave, in sectors.
const INTERLEAVE: u32 = 32_768;
/// The largest tag of current kernels.
const LARGEST_TAG: u16 = 255;

/// The parameters of a new volume's superblock.
#[derive(Debug, Clone)]
pub struct NewSuperblock {
    /// Bytes of a tag; `None`: the length of the hash.
    pub tag_size: Option<u16>,
    /// Bytes of a block.
    pub block_size: u32,
    /// Sectors of the journal; `None`: a 128th of the device, at most 64 MiB.
    pub journal_sectors: Option<u64>,
    /// Sectors between two runs of tags.
    pub interleave_sectors: Option<u32>,
    /// Legacy padding, from before kernel 5.11: a run of tags ends at 128 KiB.
    pub legacy_padding: bool,
    /// Legacy MACs, from before kernel 5.11: without salt and section numbers, and no MAC of the
    /// superblock.
    pub legacy_hmac: bool,
    /// Tags are made by recalculation, from the existing data.
    pub recalculating: bool,
}

impl Default for NewSuperblock {
    fn default() -> Self {
        Self {
            tag_size: None,
            block_size: 512,
            journal_sectors: None,
            interleave_sectors: None,
            legacy_padding: false,
            legacy_hmac: false,
            recalculating: false,
        }
    }
}

impl NewSuperblock {
    /// Makes the superblock of a new volume on devices of these sizes, with a new salt.
    ///
    /// # Errors
    /// `BadOption` for unsuitable options, `TooSmall` for small devices, `Unsupported` as
    /// [`VolumeGeometry::new`].
    pub fn superblock(&self, options: &OpenSettings, sizes: DiskSizes) -> Result<Superblock> {
        options.check(sizes.meta.is_some())?;
        let (tag_size, log2_block) = (self.tag_size(options)?, self.log2_block()?);
        let has_keys = options.hash.is_some() || options.journal_mac.is_some();
        let is_inline = options.mode == WriteMode::Inline;
        let mut flags = Flags::default();
        flags.set(Flags::INLINE, is_inline);
        flags.set(Flags::JOURNAL_MAC, options.journal_mac.is_some());
        flags.set(Flags::FIXED_HMAC, has_keys && !self.legacy_hmac);
        flags.set(Flags::FIXED_PADDING, !self.legacy_padding && sizes.meta.is_none());
        flags.set(Flags::RECALCULATING, self.recalculating);
        let interleave = self.interleave_sectors.filter(|sectors| *sectors > 0).unwrap_or(INTERLEAVE);
        let mut salt = [0; 16];
        if flags.has(Flags::FIXED_HMAC) {
            getrandom::fill(&mut salt)
                .map_err(|e| Error::new(ErrorKind::Io, "the kernel gave no random bytes").with_source(e))?;
        }
        let log2_interleave = u8::try_from(interleave.ilog2().clamp(3, 31)).unwrap_or(31);
        let mut superblock = Superblock {
            log2_interleave: if sizes.meta.is_some() { 0 } else { log2_interleave },
            tag_size,
            journal_sections: 0,
            provided: 0,
            flags,
            log2_block,
            log2_bitmap: 0,
            recalculated: 0,
            salt,
        };
        if !is_inline {
            superblock.journal_sections = self.sections(&superblock, sizes)?;
        }
        let geometry = fit(&mut superblock, options, sizes)?;
        superblock.provided = geometry.provided();
        superblock.log2_bitmap = Bitmap::granularity(&geometry, options.sectors_per_bit);
        Ok(superblock)
    }

    /// The requested number of journal sections.
    fn sections(&self, superblock: &Superblock, sizes: DiskSizes) -> Result<u32> {
        let default = (sizes.data / SECTOR / 128).min(LARGEST_JOURNAL);
        let wanted = self.journal_sectors.unwrap_or(default);
        let has_mac = superblock.flags.has(Flags::JOURNAL_MAC);
        let section = SectionShape::new(superblock.log2_block, superblock.tag_size, has_mac)?;
        u32::try_from((wanted / section.sectors() as u64).max(1)).map_err(|_| {
            Error::new(ErrorKind::BadOption, format!("a journal of {wanted} sectors is too long"))
        })
    }

    fn tag_size(&self, options: &OpenSettings) -> Result<u16> {
        let made = options.hash.as_ref().and_then(|hash| u16::try_from(hash.size()).ok());
        let size = self.tag_size.or(made).filter(|size| (1..=LARGEST_TAG.min(MAX_TAG)).contains(size));
        size.ok_or_else(|| {
            let context = format!(
                "set a tag size of 1 to {LARGEST_TAG} bytes; without one, tags are as long as the hash"
            );
            Error::new(ErrorKind::BadOption, context)
        })
    }

    fn log2_block(&self) -> Result<u8> {
        (0..4).find(|log2| 512 << log2 == self.block_size).ok_or_else(|| {
            let context =
                format!("blocks of {} bytes: 512, 1024, 2048 and 4096 are possible", self.block_size);
            Error::new(ErrorKind::BadOption, context)
        })
    }
}

/// Finds the geometry, with fewer journal sections where a metadata device has no room for all.
fn fit(superblock: &mut Superblock, options: &OpenSettings, sizes: DiskSizes) -> Result<VolumeGeometry> {
    let most = superblock.journal_sections;
    let first = VolumeGeometry::new(superblock, options, sizes);
    if sizes.meta.is_none() || first.is_ok() {
        return first;
    }
    let mut found = 0;
    for bit in (0..u32::BITS).rev().map(|bit| 1 << bit).filter(|bit| *bit <= most) {
        superblock.journal_sections = found | bit;
        if superblock.journal_sections <= most && VolumeGeometry::new(superblock, options, sizes).is_ok() {
            found |= bit;
        }
    }
    superblock.journal_sections = found;
    if found == 0 { first } else { VolumeGeometry::new(superblock, options, sizes) }
}

/// Writes an empty journal, then this superblock; previous contents are lost. Tags are made by
/// [`wipe`], or by recalculation.
///
/// # Errors
/// `Io`, and those of [`VolumeGeometry::new`].
pub fn format(disks: &Disks<'_>, options: &OpenSettings, superblock: &Superblock) -> Result<()> {
    let geometry = VolumeGeometry::new(superblock, options, disks.sizes()?)?;
    let metadata = disks.metadata();
    if geometry.sections() > 0 {
        let journal = JournalFormat::new(&geometry, superblock, options)?;
        journal.clear(metadata, 0, geometry.sections(), JournalRound::FIRST)?;
        disk::sync(metadata)?;
    }
    superblock.write(metadata, options.start, options.mode, options.journal_mac.as_ref())?;
    disk::sync(metadata)
}

/// The parts that [`wipe`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wipe {
    /// Zeros, and their tags.
    All,
    /// The tags alone, for data of zeros.
    Tags,
}

/// The unit of ranges that can be wiped or read independently, in sectors: their tags fill whole
/// sectors, in every geometry.
pub const WIPE_STEP: u64 = 32_768;

/// Zeros these sectors, with their tags; both ends are at block boundaries. The caller syncs.
/// Threads may work in parallel on ranges that begin at multiples of [`WIPE_STEP`].
///
/// # Errors
/// `Unsupported` for inline tags, which have no place on a disk; `Io`.
pub fn wipe(
    disks: &Disks<'_>,
    geometry: &VolumeGeometry,
    tags: &TagMaker,
    sectors: Range<u64>,
    what: Wipe,
) -> Result<()> {
    /// Sectors of a write.
    const RUN: u64 = 2048;
    geometry.check_tags_have_places()?;
    let zeros = vec![0; usize::try_from(RUN * SECTOR).unwrap_or(0)];
    let mut at = sectors.start;
    while at < sectors.end {
        let place = geometry.place(at);
        let run = place.sectors.min(RUN).min(sectors.end - at);
        let data = &zeros[..usize::try_from(run * SECTOR).unwrap_or(0)];
        let mut made = vec![0; data.len() / geometry.block_size() * geometry.tag_size()];
        tags.make(at, data, &mut made);
        if what == Wipe::All {
            disk::write(disks.data, place.data, data)?;
        }
        disk::write(disks.metadata(), place.tag, &made)?;
        at += run;
    }
    Ok(())
}
