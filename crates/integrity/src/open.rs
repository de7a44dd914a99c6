//! What happens to a volume when it is opened: the superblock is checked, the journal replayed, the
//! bitmap taken in.

use crate::disk::{self, Disks};
use crate::geometry::SECTOR;
use crate::{
    Bitmap, DiskSizes, Error, ErrorKind, Flags, JournalFormat, JournalRound, OpenSettings, Recalculate,
    ReplayResult, Result, Superblock, TagMaker, VolumeGeometry, WriteMode,
};

/// A volume that is ready to be read and written.
#[derive(Debug, Clone)]
pub struct OpenedVolume {
    /// The superblock, as it is on disk.
    pub superblock: Superblock,
    /// Where things lie.
    pub geometry: VolumeGeometry,
    /// What makes the tags.
    pub tags: Option<TagMaker>,
    /// The journal; none in recovery, and with inline tags.
    pub journal: Option<JournalFormat>,
    /// What was replayed; nothing where a bitmap was in the place of the journal.
    pub replayed: Option<ReplayResult>,
    /// The section of the journal that is written next, and its round.
    pub next: (u32, JournalRound),
    /// In bitmap mode what is on disk: the regions whose tags are still to be made anew.
    pub bitmap: Option<Bitmap>,
}

impl OpenedVolume {
    /// The first sector whose tag is still to be made anew, if one is.
    pub fn recalculation(&self) -> Option<u64> {
        let unfinished = self.superblock.flags.has(Flags::RECALCULATING) && self.tags.is_some();
        let block = self.superblock.recalculated & !(self.geometry.block_sectors() - 1);
        Some(block).filter(|sector| unfinished && *sector < self.geometry.provided())
    }
}

/// Opens a volume as the kernel does, with the same bytes on disk afterwards. In recovery nothing
/// is written.
///
/// # Errors
/// `NoSuperblock` where none is; `BadSuperblock` and `BadOption` for what does not fit; `Integrity`
/// and `BadJournal` for what is damaged, forged or has other keys; `Unsupported` for a
/// recalculation that would authenticate what a forger wrote; `TooSmall` for a device that was cut
/// short; `Io`.
pub fn open(disks: &Disks<'_>, options: &OpenSettings) -> Result<OpenedVolume> {
    let mut opened = look(disks, options)?;
    if options.mode == WriteMode::Recovery {
        return Ok(opened);
    }
    let stored = opened.superblock.clone();
    opened.begin_recalculation(options);
    // A recalculation that is asked for now is one of everything, whatever a bitmap says that was
    // left behind.
    let is_on = |superblock: &Superblock| superblock.flags.has(Flags::RECALCULATING);
    let begins = is_on(&opened.superblock) && !is_on(&stored);
    let known = if begins { 0 } else { opened.superblock.provided };
    let grown = known..opened.geometry.provided();
    opened.superblock.provided = opened.geometry.provided();
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
        // As long as the journal stands where the bitmap will, a granularity that nobody has says
        // that no region is known.
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

/// Reads what a volume is, and checks it, without a look at its journal. Nothing is written.
///
/// # Errors
/// As [`open`], but for what concerns journal and bitmap.
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

/// The kernel gives such a volume to whoever asks for no more than is left, and forgets what it
/// was; cryptsetup asks for all of it.
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

/// A recalculation takes whatever stands there for good: with a key that would make a forger's data
/// authentic, unless the superblock, which says how far it is, has a MAC with a key.
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
    // A bitmap where the mode has none ends in a recalculation, of everything if the bitmap says
    // so.
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
    /// Options for who only reads: of a volume that was left with a bitmap only what that names is
    /// without tags, whatever the mode is.
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

    /// The journal's area holds a journal: it is replayed, and in bitmap mode becomes a bitmap.
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

    /// The journal's area holds a bitmap: tags that may be wrong are made anew.
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
            // That tags are to be made anew must be on the disk before the bitmap, which says so,
            // is gone.
            self.disown_bitmap(disks, options)?;
            journal.clear(metadata, 0, self.geometry.sections(), JournalRound::FIRST)?;
            disk::sync(metadata)?;
            self.next = (0, JournalRound::FIRST.next());
        }
        self.superblock.flags.set(Flags::DIRTY_BITMAP, false);
        Ok(())
    }

    /// Writes a superblock with a granularity that nobody has: whatever lies where the bitmap
    /// would, no region is known.
    fn disown_bitmap(&self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        let mut unknown = self.clone();
        unknown.superblock.flags.set(Flags::DIRTY_BITMAP, true);
        unknown.superblock.log2_bitmap |= 0x80;
        unknown.write_superblock(disks, options)
    }

    /// Writes the superblock, as it is now, and syncs.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_superblock(&self, disks: &Disks<'_>, options: &OpenSettings) -> Result<()> {
        let metadata = disks.metadata();
        self.superblock.write(metadata, options.start, options.mode, options.journal_mac.as_ref())?;
        disk::sync(metadata)
    }
}
