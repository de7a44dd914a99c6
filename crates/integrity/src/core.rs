//! A running volume.
//!
//! ```text
//!   read, write, discard, flush        from any thread, each with its LowerDisks
//!        |
//!      claims      a block has one writer, or readers
//!        |
//!      journal  J: sections in memory, committed together, copied back in runs
//!      regions  B: a durable bit before a region is written
//!        |
//!      data in their places, tags in tag_cache
//! ```
//!
//! No thread is needed for progress: a thread that finds no room in the journal makes room.
//! [`Core::tend`] does so in time, so that other threads need not.
//!
//! Blocks that are being written at a power cut, by mode:
//! - **J**: each is old or new, with a matching tag; flushed writes are kept.
//! - **B**: any mixture of sectors; tags are recalculated from the data, and blocks not verified
//!   until then.
//! - **D**: data and tag may differ in age: such a block cannot be read until it is written again.
//! - **I**: as the device promises for a block and its tuple.
//!
//! An error in writing journal, tags, bitmap or superblock is final: from then on all changes fail
//! with it, and so do flushes.

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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
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
    /// Makes the tags; `None`: the layer above does.
    hash: Option<TagMaker>,
    discards: bool,
    /// Bytes of the device's tuple for each block, in mode I.
    tuple: usize,
    settings: RunSettings,
    claims: Arc<BlockLocks>,
    cache: TagCache,
    journal: Option<Journal>,
    /// The format of an empty journal.
    sections: Option<JournalFormat>,
    regions: Option<Regions>,
    recalculation: Recalculation,
    superblock: Mutex<(Superblock, Option<KeyedHash>)>,
    /// The volume's size in sectors in the superblock on disk.
    recorded: AtomicU64,
    mismatches: MismatchLog,
    failed: OnceLock<(Errno, String)>,
    /// True when the devices take no writes.
    read_only: bool,
    /// True while the volume is being closed, and afterwards.
    closed: AtomicBool,
    /// The time when tags were last written because of their age.
    aged: Mutex<Instant>,
}

impl Core {
    /// The size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.geometry.provided() * 512
    }

    pub(crate) fn geometry(&self) -> &VolumeGeometry {
        &self.geometry
    }

    pub(crate) fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Bytes of tags that the layer above passes for each block; 0 where the tags are made here.
    pub(crate) fn handed_tags(&self) -> usize {
        if self.hash.is_some() { 0 } else { self.geometry.tag_size() }
    }

    /// The same volume, on devices without writes.
    pub(crate) fn without_writes(self) -> Self {
        Self { read_only: true, ..self }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.mode == WriteMode::Recovery
    }

    /// Reads blocks, with their tags for the layer above.
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

    /// True when some of these blocks have valid tags to compare.
    fn verifies(&self, blocks: &Range<u64>) -> bool {
        let spb = self.geometry.block_sectors();
        self.hash.is_some() && blocks.clone().any(|block| self.has_tag(block * spb))
    }

    /// Compares blocks with their tags. The caller has locked them since before the read.
    fn verify(&self, offset: u64, data: &mut [u8], tags: &[u8]) -> StepResult {
        let Some(hash) = &self.hash else { return Ok(()) };
        // A recalculation cannot hold these blocks at the same time: a block without a tag still
        // has none.
        let bad = hash.bad(offset / 512, data, tags, self.discards);
        let mut bad = bad.filter(|sector| self.has_tag(*sector));
        let Some(first) = bad.next() else { return Ok(()) };
        self.mismatches.add(first);
        bad.for_each(|sector| self.mismatches.add(sector));
        // Data that does not match its tag is not returned.
        data.fill(0);
        Err(underseal_device::Error::mismatch(offset, first * 512).into())
    }

    /// Writes blocks, with their tags from the layer above. At an interruption, whole blocks are
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
            // An interruption between a block and its tag would leave a block that fails.
            may_wait(lower)?;
        }
        let blocks = self.blocks(offset, data.len());
        self.record_growth(lower, &blocks)?;
        if let Some(journal) = self.journal.as_ref().filter(|_| !lower.may_wait())
            && !journal.has_room(self.count(&blocks))
        {
            // A worker makes room and does the whole write: tags would be made twice, and blocks
            // with the caller's tags put twice.
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

    /// True when these blocks lie in growth of the data device that no superblock records.
    fn is_unrecorded(&self, blocks: &Range<u64>) -> bool {
        self.sectors(blocks).end > self.recorded.load(SeqCst)
    }

    /// Records growth of the data device, before the first write to it.
    fn record_growth(&self, lower: &mut dyn LowerDisks, blocks: &Range<u64>) -> StepResult {
        if !self.is_unrecorded(blocks) {
            return Ok(());
        }
        may_wait(lower)?;
        let provided = self.geometry.provided();
        self.superblock().0.provided = provided;
        self.write_superblock(lower)?;
        self.recorded.store(provided, SeqCst);
        Ok(())
    }

    /// The counters and state for `status`.
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

    /// True when the block at this sector has a valid tag, which need not be recalculated first.
    fn has_tag(&self, sector: u64) -> bool {
        let end = sector + self.geometry.block_sectors();
        self.mode != WriteMode::Recovery
            && (self.recalculation.has_done(end)
                || self.regions.as_ref().is_some_and(|regions| {
                    self.recalculation.follows_bitmap() && regions.is_sound(&(sector..end))
                }))
    }

    /// Bytes whose tags are still to be recalculated, and which are not compared until then.
    pub(crate) fn unverified(&self) -> u64 {
        let size = self.geometry.provided();
        let Some((done, _)) = self.recalculation.progress(size).filter(|_| self.mode != WriteMode::Recovery)
        else {
            return 0;
        };
        let regions = self.regions.as_ref().filter(|_| self.recalculation.follows_bitmap());
        regions.map_or(size - done, |regions| regions.unsound_from(done)) * 512
    }

    /// Drops clean tags from memory, so that they are read again.
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

    /// Fails after the first final error.
    fn check(&self, kind: IoKind, offset: u64) -> StepResult {
        match self.failed.get() {
            None if self.closed.load(SeqCst) => {
                Err(kind.failed(offset, "the volume is closed", Errno::SHUTDOWN).into())
            }
            None => Ok(()),
            Some((errno, why)) => Err(kind.failed(offset, why, *errno).into()),
        }
    }

    /// Makes a failure final: data and tags can no longer be kept consistent after it.
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
