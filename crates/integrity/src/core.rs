//! A volume that is read and written.
//!
//! ```text
//!   read, write, discard, flush        from any thread, each with its own way (Lower) to the devices
//!        |
//!      claims      a block has one writer, or readers
//!        |
//!      journal  J: sections in memory, committed together, copied back in runs
//!      regions  B: a durable bit before a region is written
//!        |
//!      data in their places, tags in tag_cache
//! ```
//!
//! No thread is needed to go on: whoever lacks room in the journal makes it. [`Core::tend`] does it
//! in time, so that nobody has to.
//!
//! What a power cut leaves of blocks that were being written:
//! - **J**: each is old or new, and has its own tag; what was flushed is there.
//! - **B**: any mixture of sectors; tags are made anew from what is there, and nothing is verified
//!   until then.
//! - **D**: data and tag may be of different times: such a block cannot be read until it is written
//!   again.
//! - **I**: what the device promises for a block and its tuple.
//!
//! An error in writing journal, tags, bitmap or superblock is the last one: from then on all that
//! changes something fails with it, and so do flushes.

mod claims;
mod discards;
mod flight;
mod journal;
mod lower;
mod open;
mod places;
mod recalculate;
mod regions;
mod status;
mod tag_cache;
#[cfg(test)]
mod tests;
mod upkeep;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use underseal_device::{Error, IoKind};

use claims::{BlockGuard, BlockLocks};
pub(crate) use flight::BlockTransfer;
use journal::Journal;
use lower::may_wait;
pub(crate) use lower::{LowerDisks, Side, StepResult, Stop};
pub use open::RunSettings;
use recalculate::Recalculation;
use regions::Regions;
pub use status::IntegrityStatus;
use status::MismatchLog;
use tag_cache::TagCache;

use crate::{JournalFormat, KeyedHash, Superblock, TagMaker, VolumeGeometry, WriteMode};

/// A running volume. Offsets and lengths are bytes, multiples of its block.
pub(crate) struct Core {
    mode: WriteMode,
    geometry: VolumeGeometry,
    /// What makes tags; none: they are brought along.
    hash: Option<TagMaker>,
    discards: bool,
    /// Bytes that the device keeps with each block, in mode I.
    tuple: usize,
    settings: RunSettings,
    claims: Arc<BlockLocks>,
    cache: TagCache,
    journal: Option<Journal>,
    /// What makes an empty journal.
    sections: Option<JournalFormat>,
    regions: Option<Regions>,
    recalculation: Recalculation,
    superblock: Mutex<(Superblock, Option<KeyedHash>)>,
    mismatches: MismatchLog,
    failed: OnceLock<(Errno, String)>,
    /// The devices below take no writes.
    read_only: bool,
    /// It is being closed, or was.
    closed: AtomicBool,
    /// When tags were last written for their age.
    aged: Mutex<Instant>,
}

impl Core {
    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.geometry.provided() * 512
    }

    pub(crate) fn geometry(&self) -> &VolumeGeometry {
        &self.geometry
    }

    pub(crate) fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Bytes that are handed in and out with each block: none where tags are made here.
    pub(crate) fn handed_tags(&self) -> usize {
        if self.hash.is_some() { 0 } else { self.geometry.tag_size() }
    }

    /// The same volume on devices that take no writes.
    pub(crate) fn without_writes(self) -> Self {
        Self { read_only: true, ..self }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.mode == WriteMode::Recovery
    }

    /// Reads blocks, and their tags where those are handed out.
    pub(crate) fn read(
        &self,
        lower: &mut dyn LowerDisks,
        offset: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> StepResult {
        if data.is_empty() {
            return Ok(());
        }
        let blocks = self.blocks(offset, data.len());
        let _claim = self.claim(lower, blocks.clone(), false)?;
        let verifies = self.verifies(&blocks);
        let mut own = Vec::new();
        let tags = if verifies && tags.is_empty() {
            own.resize(self.count(&blocks) * self.geometry.tag_size(), 0);
            &mut own[..]
        } else {
            tags
        };
        self.read_newest(lower, &blocks, data, tags)?;
        if verifies { self.verify(offset, data, tags) } else { Ok(()) }
    }

    /// True when there is something to compare these blocks with.
    fn verifies(&self, blocks: &Range<u64>) -> bool {
        let spb = self.geometry.block_sectors();
        self.hash.is_some() && blocks.clone().any(|block| self.has_tag(block * spb))
    }

    /// Compares blocks with their tags. Whoever calls has claimed them since before they were read.
    fn verify(&self, offset: u64, data: &mut [u8], tags: &[u8]) -> StepResult {
        let Some(hash) = &self.hash else { return Ok(()) };
        // Who makes tags anew has no claim beside this one: a block without a tag has none still.
        let bad = hash.bad(offset / 512, data, tags, self.discards);
        let mut bad = bad.filter(|sector| self.has_tag(*sector));
        let Some(first) = bad.next() else { return Ok(()) };
        self.mismatches.add(first);
        bad.for_each(|sector| self.mismatches.add(sector));
        // What is not what was written is told to nobody.
        data.fill(0);
        Err(underseal_device::Error::mismatch(offset, first * 512).into())
    }

    /// Writes blocks, with their tags where those are handed in. Where it stops, whole blocks are
    /// written.
    pub(crate) fn write(
        &self,
        lower: &mut dyn LowerDisks,
        offset: u64,
        data: &[u8],
        tags: &[u8],
    ) -> StepResult {
        if data.is_empty() {
            return Ok(());
        }
        self.check_writable(IoKind::Write, offset)?;
        if self.journal.is_none() {
            // Who stops between a block and its tag would leave others a block that fails.
            may_wait(lower)?;
        }
        let blocks = self.blocks(offset, data.len());
        if let Some(journal) = self.journal.as_ref().filter(|_| !lower.may_wait())
            && !journal.has_room(self.count(&blocks))
        {
            // A worker makes room and does all: tags would be made twice, and blocks with tags
            // of the caller's put twice.
            return Err(Stop::Blocked(0));
        }
        let _claim = self.claim(lower, blocks.clone(), true)?;
        let mut own = Vec::new();
        let tags = match &self.hash {
            Some(hash) => {
                own.resize(self.count(&blocks) * self.geometry.tag_size(), 0);
                hash.make(offset / 512, data, &mut own);
                &own[..]
            }
            None => tags,
        };
        match (&self.journal, &self.regions) {
            (Some(journal), _) => self.write_to_journal(lower, journal, &blocks, data, tags),
            (None, Some(regions)) => {
                let sectors = self.sectors(&blocks);
                self.last(regions.begin(lower, &sectors))?;
                let written = self.write_places(lower, blocks.clone(), data, tags);
                regions.end(&sectors);
                written
            }
            (None, None) => self.write_places(lower, blocks, data, tags),
        }
    }

    /// What it tells of itself.
    pub(crate) fn status(&self) -> IntegrityStatus {
        let (mismatches, first_mismatches) = self.mismatches.tell();
        IntegrityStatus {
            mismatches,
            first_mismatches,
            recalculated: self.recalculation.progress(self.geometry.provided()),
            journal: self.journal.as_ref().map(Journal::in_use),
            failed: self.failed.get().map(|(_, why)| why.clone()),
        }
    }

    /// True when the tag of the block at this sector is what it should be: it is not still to be
    /// made anew.
    fn has_tag(&self, sector: u64) -> bool {
        let end = sector + self.geometry.block_sectors();
        self.mode != WriteMode::Recovery
            && (self.recalculation.has_done(end)
                || self.regions.as_ref().is_some_and(|regions| {
                    self.recalculation.follows_bitmap() && regions.is_sound(&(sector..end))
                }))
    }

    /// Bytes whose tags are still to be made anew: until then they are compared with nothing.
    pub(crate) fn unverified(&self) -> u64 {
        let size = self.geometry.provided();
        let Some((done, _)) = self.recalculation.progress(size).filter(|_| self.mode != WriteMode::Recovery)
        else {
            return 0;
        };
        let regions = self.regions.as_ref().filter(|_| self.recalculation.follows_bitmap());
        regions.map_or(size - done, |regions| regions.unsound_from(done)) * 512
    }

    /// Tags are read again from below, where they are not newer here.
    pub(crate) fn forget(&self) {
        self.cache.forget();
    }

    fn claim(&self, lower: &dyn LowerDisks, blocks: Range<u64>, alone: bool) -> StepResult<BlockGuard> {
        if lower.may_wait() {
            return Ok(self.claims.take(blocks, alone));
        }
        self.claims.try_take(blocks, alone).ok_or(Stop::Blocked(0))
    }

    fn check_writable(&self, kind: IoKind, offset: u64) -> StepResult {
        if self.is_read_only() {
            let why = "the volume is open for recovery or its device is read-only: nothing is changed";
            return Err(kind.failed(offset, why, Errno::ROFS).into());
        }
        self.check(kind, offset)
    }

    /// Fails from the first failure on.
    fn check(&self, kind: IoKind, offset: u64) -> StepResult {
        match self.failed.get() {
            None if self.closed.load(SeqCst) => {
                Err(kind.failed(offset, "the volume is closed", Errno::SHUTDOWN).into())
            }
            None => Ok(()),
            Some((errno, why)) => Err(kind.failed(offset, why, *errno).into()),
        }
    }

    /// A step after whose failure nothing can be kept together any more.
    fn last<T>(&self, step: StepResult<T>) -> StepResult<T> {
        if let Err(Stop::Failed(e)) = &step {
            self.fail(e);
        }
        step
    }

    fn fail(&self, e: &Error) {
        let errno = e.errno().map_or(Errno::IO, Errno::from_raw_os_error);
        if self.failed.set((errno, format!("an earlier error is final: {e}"))).is_ok() {
            log::error!(
                "integrity volume: {e}: nothing is written any more until it is opened again; where a sector of the disk cannot be written, \
                 copy the volume with --read-only"
            );
        }
    }

    fn superblock(&self) -> MutexGuard<'_, (Superblock, Option<KeyedHash>)> {
        lock(&self.superblock)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
