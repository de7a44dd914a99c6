//! Opening a volume: the superblock is checked, the journal replayed, the bitmap read.

use crate::disk::{self, Disks};
use crate::geometry::SECTOR;
use crate::{
    Bitmap, DiskSizes, Error, ErrorKind, Flags, JournalFormat, JournalRound, OpenSettings, Recalculate,
    ReplayResult, Result, Superblock, TagMaker, VolumeGeometry, WriteMode,
};

/// An opened volume.
#[derive(Debug, Clone)]
pub struct OpenedVolume {
    /// The superblock on disk.
    pub superblock: Superblock,
    /// The positions of all parts.
    pub geometry: VolumeGeometry,
    /// Makes the tags.
    pub tags: Option<TagMaker>,
    /// The journal; `None` in recovery, and with inline tags.
    pub journal: Option<JournalFormat>,
    /// The result of the replay; `None` where the journal's area had a bitmap.
    pub replayed: Option<ReplayResult>,
    /// The next section of the journal to be written, and its round.
    pub next: (u32, JournalRound),
    /// In bitmap mode, the bitmap on disk: regions whose tags are still to be recalculated.
    pub bitmap: Option<Bitmap>,
}

impl OpenedVolume {
    /// The first sector whose tag is still to be recalculated, if there is one.
    pub fn recalculation(&self) -> Option<u64> {
        let unfinished = self.superblock.flags.has(Flags::RECALCULATING) && self.tags.is_some();
        let block = self.superblock.recalculated & !(self.geometry.block_sectors() - 1);
        Some(block).filter(|sector| unfinished && *sector < self.geometry.provided())
    }
}

/// Opens a volume as the kernel does, with the same bytes on disk afterwards. Recovery mode writes
/// nothing.
///
/// # Errors
/// `NoSuperblock` without a superblock; `BadSuperblock` and `BadOption` for contradictions;
/// `Integrity` and `BadJournal` for damage, forgery and wrong keys; `Unsupported` for a
/// recalculation that would authenticate a forger's data; `TooSmall` for a device that was cut
/// short; `Io`.
pub fn open(disks: &Disks<'_>, options: &OpenSettings) -> Result<OpenedVolume> {
    let mut opened = look(disks, options)?;
    if options.mode == WriteMode::Recovery {
        return Ok(opened);
    }
    // After a sync that failed the page cache shows what the disk does not have, and what follows
    // depends on that.
    Superblock::secure(disks.metadata(), options.start)?;
    let stored = opened.superblock.clone();
    opened.begin_recalculation(options);
    // A recalculation that is requested now covers everything, whatever a remaining bitmap says.
    let is_on = |superblock: &Superblock| superblock.flags.has(Flags::RECALCULATING);
    let begins = is_on(&opened.superblock) && !is_on(&stored);
    let known = if begins { 0 } else { opened.superblock.provided };
    let grown = known..opened.geometry.provided();
    let has_flag = opened.superblock.flags.has(Flags::DIRTY_BITMAP) || is_on(&opened.superblock);
    let writes_tags = has_flag || options.mode == WriteMode::Bitmap;
    if !options.defers_growth || disks.meta.is_none() || writes_tags {
        opened.superblock.provided = opened.geometry.provided();
    }
    if opened.superblock.flags.has(Flags::DIRTY_BITMAP) {
        opened.take_in_bitmap(disks, options, grown)?;
    } else {
        opened.take_in_journal(disks, options)?;
    }
    let superblock = &mut opened.superblock;
    if superblock.flags.has(Flags::RECALCULATING) {
        superblock.recalculated = superblock.recalculated.min(superblock.provided);
    }
    let fresh = opened.bitmap.as_ref().filter(|_| !stored.flags.has(Flags::DIRTY_BITMAP));
    if let Some(bitmap) = fresh.filter(|bitmap| bitmap.dirty().next().is_some()) {
        // While the journal is still in the bitmap's place, an invalid granularity marks every
        // region as unknown.
        opened.disown_bitmap(disks, options)?;
        bitmap.write_all(disks.metadata())?;
        disk::sync(disks.metadata())?;
    }
    if opened.superblock != stored {
        opened.write_superblock(disks, options)?;
    }
    if let Some(bitmap) = opened.bitmap.as_ref().filter(|_| !stored.flags.has(Flags::DIRTY_BITMAP)) {
        bitmap.write_all(disks.metadata())?;
        disk::sync(disks.metadata())?;
    }
    Ok(opened)
}

/// Reads and checks a volume's superblock, without its journal. Nothing is written.
///
/// # Errors
/// As [`open`], without those of journal and bitmap.
pub fn look(disks: &Disks<'_>, options: &OpenSettings) -> Result<OpenedVolume> {
    let has_meta = disks.meta.is_some();
    options.check(has_meta)?;
    let is_recovery = options.mode == WriteMode::Recovery;
    let mac = options.journal_mac.as_ref().filter(|_| !is_recovery);
    let missing = || {
        options.missing.clone().filter(|_| is_recovery).ok_or_else(|| {
            let context = "there is no integrity superblock: the volume has to be formatted first";
            Error::new(ErrorKind::NoSuperblock, context)
        })
    };
    let superblock = match Superblock::read(disks.metadata(), options.start, mac) {
        Ok(Some(superblock)) => superblock,
        Ok(None) => missing()?,
        Err(e) if e.kind() == ErrorKind::NoSuperblock => missing().map_err(|_| e)?,
        Err(e) => return Err(e),
    };
    superblock.check(options, has_meta)?;
    let sizes = disks.sizes()?;
    let geometry = VolumeGeometry::new(&superblock, options, sizes)?;
    if !is_recovery {
        refuse_cut_short(&superblock, &geometry, sizes)?;
    }
    refuse_recalculation(&superblock, &geometry, options)?;
    let tags = options.hash.clone().map(|hash| {
        let salt = superblock.flags.has(Flags::FIXED_HMAC).then_some(superblock.salt);
        TagMaker::new(hash, salt, geometry.tag_size(), geometry.block_size())
    });
    let has_journal = geometry.sections() > 0 && !is_recovery;
    let journal = if has_journal { Some(JournalFormat::new(&geometry, &superblock, options)?) } else { None };
    Ok(OpenedVolume {
        superblock,
        geometry,
        tags,
        journal,
        replayed: None,
        next: (0, JournalRound::FIRST),
        bitmap: None,
    })
}

/// Refuses a volume on a device that became smaller. The kernel opens such a volume with the
/// remaining size, and forgets the old one; cryptsetup requires all of it.
fn refuse_cut_short(superblock: &Superblock, geometry: &VolumeGeometry, sizes: DiskSizes) -> Result<()> {
    let (was, is) = (superblock.provided, geometry.provided());
    if was <= is {
        return Ok(());
    }
    let context = format!(
        "the volume was cut short: a device of {} sectors has room for {is} of its {was} sectors. Make the device as large as it \
         was, or open it for recovery (mode R) to read what is left",
        sizes.data / SECTOR
    );
    Err(Error::new(ErrorKind::TooSmall, context))
}

/// Refuses a recalculation that would authenticate a forger's data with a key, unless the
/// superblock, which has the progress, has a keyed MAC.
fn refuse_recalculation(
    superblock: &Superblock,
    geometry: &VolumeGeometry,
    options: &OpenSettings,
) -> Result<()> {
    let has_key = |hash: &Option<crate::KeyedHash>| hash.as_ref().is_some_and(crate::KeyedHash::is_keyed);
    let (hash, mac) = (has_key(&options.hash), has_key(&options.journal_mac));
    let forgeable = if superblock.flags.has(Flags::FIXED_HMAC) { hash && !mac } else { hash || mac };
    let begins = options.recalculate != Recalculate::AsNeeded;
    let is_unfinished =
        superblock.flags.has(Flags::RECALCULATING) && superblock.recalculated < geometry.provided();
    // A bitmap in a mode without one leads to a recalculation, of everything if the bitmap requires
    // it.
    let has_no_place = !matches!(options.mode, WriteMode::Bitmap | WriteMode::Recovery);
    let has_bitmap = superblock.flags.has(Flags::DIRTY_BITMAP) && has_no_place;
    if (begins || is_unfinished || has_bitmap) && forgeable && !options.legacy_recalculate {
        let context = "a recalculation with a keyed hash would authenticate what a forger wrote: give the journal a keyed MAC when \
                       formatting, open a volume that was not closed in mode B in that mode, or allow it (legacy recalculation)";
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(())
}

impl OpenedVolume {
    /// Sets options for reading: in a volume with a bitmap, only its dirty regions have no tags, in
    /// every mode.
    pub fn keep_bitmap(&self, options: &mut OpenSettings) {
        let has_none =
            matches!(options.mode, WriteMode::Recovery | WriteMode::Inline) || options.hash.is_none();
        if self.superblock.flags.has(Flags::DIRTY_BITMAP) && !has_none {
            options.mode = WriteMode::Bitmap;
            let log2 = u32::from(self.superblock.log2_bitmap) + u32::from(self.superblock.log2_block);
            options.sectors_per_bit = 1u64.checked_shl(log2);
        }
    }

    fn begin_recalculation(&mut self, options: &OpenSettings) {
        let is_on = self.superblock.flags.has(Flags::RECALCULATING);
        let begins = match options.recalculate {
            Recalculate::AsNeeded => false,
            Recalculate::Begin => !is_on,
            Recalculate::Reset => true,
        };
        if begins {
            self.recalculate_all();
        }
    }

    fn recalculate_all(&mut self) {
        self.superblock.flags.set(Flags::RECALCULATING, true);
        self.superblock.recalculated = 0;
    }

    /// Replays the journal in the journal's area; in bitmap mode the area then gets a bitmap.
    fn take_in_journal(&mut self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        if let Some(journal) = &self.journal {
            let replayed = journal.replay(disks, self.tags.as_ref(), options.mode).map_err(|e| {
                if e.kind() != ErrorKind::Io {
                    return e;
                }
                let remedy = "the journal cannot be replayed; where the disk is full, make room; where a sector cannot be \
                              written, copy the volume with --read-only, which has everything that was flushed";
                Error::new(ErrorKind::Io, remedy).with_source(e)
            })?;
            self.next = (replayed.next, replayed.round);
            self.replayed = Some(replayed);
        }
        if options.mode == WriteMode::Bitmap {
            let log2 = Bitmap::granularity(&self.geometry, options.sectors_per_bit);
            let mut bitmap = Bitmap::new(&self.geometry, log2)?;
            if let Some(from) = self.recalculation() {
                bitmap.set(bitmap.bits_of(from..self.geometry.provided()), true);
            }
            self.superblock.flags.set(Flags::DIRTY_BITMAP, true);
            self.superblock.log2_bitmap = log2;
            self.bitmap = Some(bitmap);
        }
        Ok(())
    }

    /// Reads the bitmap in the journal's area: tags of its regions are recalculated.
    fn take_in_bitmap(
        &mut self,
        disks: &Disks<'_>,
        options: &OpenSettings,
        grown: std::ops::Range<u64>,
    ) -> Result<()> {
        if self.tags.is_none() {
            let context = "the volume was not closed and has a bitmap: name the hash, with which its tags are made anew";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let metadata = disks.metadata();
        let log2 = Bitmap::granularity(&self.geometry, options.sectors_per_bit);
        let is_known = self.superblock.log2_bitmap == log2 && options.recalculate != Recalculate::Reset;
        let mut bitmap = if is_known {
            Bitmap::read(metadata, &self.geometry, log2)?
        } else {
            Bitmap::new(&self.geometry, log2)?
        };
        let grown = if is_known { grown } else { 0..self.geometry.provided() };
        if !grown.is_empty() {
            bitmap.set(bitmap.bits_of(grown), true);
        }
        if bitmap.dirty().next().is_some() {
            self.recalculate_all();
        }
        if options.mode == WriteMode::Bitmap {
            if self.superblock.log2_bitmap != log2 {
                self.disown_bitmap(disks, options)?;
            }
            bitmap.write_all(metadata)?;
            disk::sync(metadata)?;
            self.superblock.log2_bitmap = log2;
            self.bitmap = Some(bitmap);
            return Ok(());
        }
        if let Some(journal) = &self.journal {
            // The recalculation must be on the disk before the bitmap, which requires it, is gone.
            self.disown_bitmap(disks, options)?;
            journal.clear(metadata, 0, self.geometry.sections(), JournalRound::FIRST)?;
            disk::sync(metadata)?;
            self.next = (0, JournalRound::FIRST.next());
        }
        self.superblock.flags.set(Flags::DIRTY_BITMAP, false);
        Ok(())
    }

    /// Writes a superblock with an invalid granularity, which marks every region as unknown,
    /// whatever bytes are in the bitmap's place.
    fn disown_bitmap(&self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        let mut unknown = self.clone();
        unknown.superblock.flags.set(Flags::DIRTY_BITMAP, true);
        unknown.superblock.log2_bitmap |= 0x80;
        unknown.write_superblock(disks, options)
    }

    /// Writes the present superblock, and syncs.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_superblock(&self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        let metadata = disks.metadata();
        self.superblock.write(metadata, options.start, options.mode, options.journal_mac.as_ref())?;
        disk::sync(metadata)
    }
}
