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
//! No thread is needed to go on: whoever lacks room in the journal makes it. [`Core::tend`] does it in time, so that nobody has to.
//!
//! What a power cut leaves of blocks that were being written:
//! - **J**: each is old or new, and has its own tag; what was flushed is there.
//! - **B**: any mixture of sectors; tags are made anew from what is there, and nothing is verified until then.
//! - **D**: data and tag may be of different times: such a block cannot be read until it is written again.
//! - **I**: what the device promises for a block and its tuple.
//!
//! An error in writing journal, tags, bitmap or superblock is the last one: from then on all that changes something fails with it, and so do flushes.

mod claims;
mod journal;
mod lower;
mod open;
mod recalculate;
mod regions;
mod status;
mod tag_cache;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_device::{Error, Kind};

use claims::{Claim, Claims};
use journal::Journal;
use lower::may_wait;
pub(crate) use lower::{Lower, Side, Step, Stop};
pub use open::Settings;
use recalculate::Recalculation;
use regions::Regions;
use status::Mismatches;
pub use status::Status;
use tag_cache::TagCache;

use crate::{DISCARDED, Geometry, Hash, Journal as Sections, Mode, Superblock, Tags};

/// A running volume. Offsets and lengths are bytes, multiples of its block.
pub(crate) struct Core {
    mode: Mode,
    geometry: Geometry,
    /// What makes tags; none: they are brought along.
    hash: Option<Tags>,
    discards: bool,
    /// Bytes that the device keeps with each block, in mode I.
    tuple: usize,
    settings: Settings,
    claims: Claims,
    cache: TagCache,
    journal: Option<Journal>,
    /// What makes an empty journal.
    sections: Option<Sections>,
    regions: Option<Regions>,
    recalculation: Recalculation,
    superblock: Mutex<(Superblock, Option<Hash>)>,
    mismatches: Mismatches,
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

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn mode(&self) -> Mode {
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
        self.read_only || self.mode == Mode::Recovery
    }

    pub(crate) fn takes_discards(&self) -> bool {
        self.discards && self.hash.is_some() && !self.is_read_only() && self.mode != Mode::Inline
    }

    /// Reads blocks, and their tags where those are handed out.
    pub(crate) fn read(&self, lower: &mut dyn Lower, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Step {
        if data.is_empty() {
            return Ok(());
        }
        let blocks = self.blocks(offset, data.len());
        let _claim = self.claim(lower, blocks.clone(), false)?;
        let verify = self.hash.as_ref().filter(|_| self.is_verified(&blocks));
        let mut own = Vec::new();
        let tags = if verify.is_some() && tags.is_empty() {
            own.resize(self.count(&blocks) * self.geometry.tag_size(), 0);
            &mut own[..]
        } else {
            tags
        };
        self.read_newest(lower, &blocks, data, tags)?;
        let Some(hash) = verify else { return Ok(()) };
        let mut bad = hash.bad(offset / 512, data, tags, self.discards);
        let Some(first) = bad.next() else { return Ok(()) };
        self.mismatches.add(first);
        bad.for_each(|sector| self.mismatches.add(sector));
        // What is not what was written is told to nobody.
        data.fill(0);
        Err(underseal_device::Error::mismatch(offset, first * 512).into())
    }

    /// From the journal what is there, the rest from its place.
    fn read_newest(
        &self,
        lower: &mut dyn Lower,
        blocks: &Range<u64>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> Step {
        let found = self.journal.as_ref().map(|journal| journal.find(blocks.clone())).unwrap_or_default();
        let mut next = blocks.start;
        for known in &found {
            self.read_places(lower, next..known.block, blocks.start, data, tags)?;
            let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
            let i = self.count(&(blocks.start..known.block));
            let tag = tags.get_mut(i * tag_size..(i + 1) * tag_size).unwrap_or_default();
            if let Some(journal) = &self.journal {
                journal.get(known, &mut data[i * size..(i + 1) * size], tag);
            }
            next = known.block + 1;
        }
        self.read_places(lower, next..blocks.end, blocks.start, data, tags)
    }

    /// Blocks from their places. `data` and `tags` begin with the block `first`; no tags: none are wanted.
    fn read_places(
        &self,
        lower: &mut dyn Lower,
        blocks: Range<u64>,
        first: u64,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> Step {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        for run in self.runs(blocks) {
            let place = self.geometry.place(run.start * self.geometry.block_sectors());
            let (from, to) = (self.count(&(first..run.start)), self.count(&(first..run.end)));
            let data = &mut data[from * size..to * size];
            let tags = tags.get_mut(from * tag_size..to * tag_size).unwrap_or_default();
            if self.mode == Mode::Inline {
                let mut tuples = vec![0; (to - from) * self.tuple];
                lower.read_tagged(place.data, data, &mut tuples)?;
                let pairs = tags.chunks_exact_mut(tag_size).zip(tuples.chunks_exact(self.tuple));
                pairs.for_each(|(tag, tuple)| tag.copy_from_slice(&tuple[..tag_size]));
            } else {
                lower.read(Side::Data, place.data, data)?;
                if !tags.is_empty() {
                    self.cache.read(lower, place.tag, tags)?;
                }
            }
        }
        Ok(())
    }

    /// Writes blocks, with their tags where those are handed in. Where it stops, whole blocks are written.
    pub(crate) fn write(&self, lower: &mut dyn Lower, offset: u64, data: &[u8], tags: &[u8]) -> Step {
        if data.is_empty() {
            return Ok(());
        }
        self.check_writable(Kind::Write, offset)?;
        if self.journal.is_none() {
            // Who stops between a block and its tag would leave others a block that fails.
            may_wait(lower)?;
        }
        let blocks = self.blocks(offset, data.len());
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

    fn write_to_journal(
        &self,
        lower: &mut dyn Lower,
        journal: &Journal,
        blocks: &Range<u64>,
        data: &[u8],
        tags: &[u8],
    ) -> Step {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        let (mut next, mut done) = (blocks.start, 0);
        while next < blocks.end {
            let put = journal.put(next, &data[done * size..], &tags[done * tag_size..]);
            next += put as u64;
            done += put;
            if put == 0 {
                if !lower.may_wait() {
                    return Err(Stop::Blocked(done * size));
                }
                self.last(journal.make_room(lower, &self.cache))?;
            }
        }
        Ok(())
    }

    fn write_places(&self, lower: &mut dyn Lower, blocks: Range<u64>, data: &[u8], tags: &[u8]) -> Step {
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        let first = blocks.start;
        for run in self.runs(blocks) {
            let place = self.geometry.place(run.start * self.geometry.block_sectors());
            let (from, to) = (self.count(&(first..run.start)), self.count(&(first..run.end)));
            let (data, tags) = (&data[from * size..to * size], &tags[from * tag_size..to * tag_size]);
            let written = if self.mode == Mode::Inline {
                let mut tuples = vec![0; (to - from) * self.tuple];
                let pairs = tags.chunks_exact(tag_size).zip(tuples.chunks_exact_mut(self.tuple));
                pairs.for_each(|(tag, tuple)| tuple[..tag_size].copy_from_slice(tag));
                lower.write_tagged(place.data, data, &tuples)
            } else {
                lower
                    .write(Side::Data, place.data, data, false)
                    .and_then(|()| self.cache.write(lower, place.tag, tags))
            };
            // What is done of a run is done again with the rest of it.
            written.map_err(|stop| match stop {
                Stop::Blocked(_) => Stop::Blocked(from * size),
                failed @ Stop::Failed(_) => failed,
            })?;
        }
        Ok(())
    }

    /// The blocks need not be kept; afterwards they read as anything, and without an error.
    pub(crate) fn discard(&self, lower: &mut dyn Lower, offset: u64, len: u64) -> Step {
        if !self.takes_discards() || len == 0 {
            return Ok(());
        }
        self.check_writable(Kind::Discard, offset)?;
        may_wait(lower)?;
        let block = self.geometry.block_size() as u64;
        let blocks = offset / block..(offset + len) / block;
        let _claim = self.claim(lower, blocks.clone(), true)?;
        match (&self.journal, &self.regions) {
            (Some(journal), _) => {
                let ranges = self.discard_torn(lower, journal, blocks)?;
                journal.apart(&ranges, || self.discard_places(lower, &ranges))
            }
            (None, Some(regions)) => {
                let sectors = self.sectors(&blocks);
                self.last(regions.begin(lower, &sectors))?;
                let done = self.discard_places(lower, &[blocks]);
                regions.end(&sectors);
                done
            }
            (None, None) => self.discard_places(lower, &[blocks]),
        }
    }

    /// A tag that lies in two sectors could be torn where it is. Such blocks become zeros, by the journal; what is left is given back.
    fn discard_torn(
        &self,
        lower: &mut dyn Lower,
        journal: &Journal,
        blocks: Range<u64>,
    ) -> Step<Vec<Range<u64>>> {
        let (tag_size, spb) = (self.geometry.tag_size() as u64, self.geometry.block_sectors());
        if 512 % tag_size == 0 {
            return Ok(vec![blocks]);
        }
        let zeros = vec![0; self.geometry.block_size()];
        let (mut ranges, mut start) = (Vec::new(), blocks.start);
        for block in blocks.clone() {
            if self.geometry.place(block * spb).tag % 512 + tag_size <= 512 {
                continue;
            }
            let mut tag = vec![0; self.geometry.tag_size()];
            self.hash.iter().for_each(|hash| hash.make(block * spb, &zeros, &mut tag));
            self.write_to_journal(lower, journal, &(block..block + 1), &zeros, &tag)?;
            ranges.push(start..block);
            start = block + 1;
        }
        ranges.push(start..blocks.end);
        ranges.retain(|range| !range.is_empty());
        Ok(ranges)
    }

    fn discard_places(&self, lower: &mut dyn Lower, ranges: &[Range<u64>]) -> Step {
        let spb = self.geometry.block_sectors();
        let runs: Vec<_> = ranges.iter().flat_map(|blocks| self.runs(blocks.clone())).collect();
        for run in &runs {
            let place = self.geometry.place(run.start * spb);
            let len = self.count(run) * self.geometry.tag_size();
            self.last(self.cache.fill(lower, place.tag, len, DISCARDED))?;
        }
        // The data may be anything once they are discarded, so the tags have to say so before.
        self.last(self.cache.write_back(lower).and_then(|()| lower.flush(Side::Meta)))?;
        for run in &runs {
            let place = self.geometry.place(run.start * spb);
            lower.discard(place.data, (run.end - run.start) * spb * 512)?;
        }
        Ok(())
    }

    /// Everything that was written before is on stable storage.
    pub(crate) fn flush(&self, lower: &mut dyn Lower) -> Step {
        may_wait(lower)?;
        self.check(Kind::Flush, 0)?;
        if self.is_read_only() {
            return Ok(());
        }
        let done = match (&self.journal, self.mode) {
            (Some(journal), _) => journal.flush(lower),
            (None, Mode::Inline) => lower.flush(Side::Data),
            (None, _) => self.flush_places(lower),
        };
        self.last(done)?;
        // What failed in another thread meanwhile may be what this was to keep.
        self.check(Kind::Flush, 0)
    }

    fn flush_places(&self, lower: &mut dyn Lower) -> Step {
        self.cache.write_back(lower)?;
        lower.flush_all()
    }

    /// True when [`Core::tend`] has something to do that others would have to wait for.
    pub(crate) fn wants_tending(&self) -> bool {
        self.failed.get().is_none() && self.journal.as_ref().is_some_and(Journal::wants_tending)
    }

    /// What is to be done now and then: full sections are written, blocks copied back, old things made durable.
    pub(crate) fn tend(&self, lower: &mut dyn Lower) -> Step {
        if self.is_read_only() {
            return Ok(());
        }
        self.check(Kind::Write, 0)?;
        let done = if let Some(journal) = &self.journal {
            let is_old =
                journal.waits_since().is_some_and(|since| since.elapsed() >= self.settings.commit_time);
            let committed = if is_old { journal.flush(lower) } else { Ok(()) };
            committed.and_then(|()| journal.tend(lower, &self.cache))
        } else if let Some(regions) = &self.regions {
            regions.sweep(lower, &self.cache, self.settings.bitmap_time)
        } else {
            self.age(lower)
        };
        self.last(done)
    }

    /// Tags do not stay in memory for long: who is killed without losing power loses none.
    fn age(&self, lower: &mut dyn Lower) -> Step {
        let is_due = {
            let mut aged = lock(&self.aged);
            let is_due = aged.elapsed() >= Duration::from_secs(1);
            if is_due {
                *aged = Instant::now();
            }
            is_due
        };
        if is_due && !self.cache.are_written() { self.cache.write_back(lower) } else { Ok(()) }
    }

    /// Leaves the volume clean. Nobody else is at it any more; what still comes fails.
    pub(crate) fn close(&self, lower: &mut dyn Lower) -> Step {
        if self.is_read_only() {
            return Ok(());
        }
        if self.closed.load(SeqCst) && self.failed.get().is_none() {
            return Ok(());
        }
        // What could not be written must be seen by whoever opens it next: nothing is called clean.
        self.check(Kind::Flush, 0)?;
        self.closed.store(true, SeqCst);
        let done = self.close_all(lower);
        self.last(done)
    }

    fn close_all(&self, lower: &mut dyn Lower) -> Step {
        if let Some(journal) = &self.journal {
            journal.empty(lower, &self.cache)?;
            journal.clear(lower)?;
        }
        if self.mode == Mode::Inline {
            return lower.flush(Side::Data);
        }
        self.flush_places(lower)?;
        self.close_superblock(lower)
    }

    /// What it tells of itself.
    pub(crate) fn status(&self) -> Status {
        let (mismatches, first_mismatches) = self.mismatches.tell();
        Status {
            mismatches,
            first_mismatches,
            recalculated: self.recalculation.progress(self.geometry.provided()),
            journal: self.journal.as_ref().map(Journal::in_use),
            failed: self.failed.get().map(|(_, why)| why.clone()),
        }
    }

    /// True when these blocks' tags are what they should be.
    fn is_verified(&self, blocks: &Range<u64>) -> bool {
        self.mode != Mode::Recovery
            && (self.recalculation.has_done(blocks.end * self.geometry.block_sectors())
                || self.regions.as_ref().is_some_and(|regions| {
                    self.recalculation.follows_bitmap() && regions.is_sound(&self.sectors(blocks))
                }))
    }

    fn claim(&self, lower: &dyn Lower, blocks: Range<u64>, alone: bool) -> Step<Claim<'_>> {
        if lower.may_wait() {
            return Ok(self.claims.take(blocks, alone));
        }
        self.claims.try_take(blocks, alone).ok_or(Stop::Blocked(0))
    }

    fn blocks(&self, offset: u64, len: usize) -> Range<u64> {
        let block = self.geometry.block_size() as u64;
        offset / block..(offset + len as u64) / block
    }

    fn sectors(&self, blocks: &Range<u64>) -> Range<u64> {
        let spb = self.geometry.block_sectors();
        blocks.start * spb..blocks.end * spb
    }

    fn count(&self, blocks: &Range<u64>) -> usize {
        usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(usize::MAX)
    }

    /// The parts of a range in which data and tags follow each other on the devices.
    fn runs(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (geometry, spb, mut next) = (self.geometry, self.geometry.block_sectors(), blocks.start);
        std::iter::from_fn(move || {
            let start = next;
            if start >= blocks.end {
                return None;
            }
            next = (start + (geometry.place(start * spb).sectors / spb).max(1)).min(blocks.end);
            Some(start..next)
        })
    }

    fn check_writable(&self, kind: Kind, offset: u64) -> Step {
        if self.is_read_only() {
            let why = "the volume is open for recovery or its device is read-only: nothing is changed";
            return Err(kind.failed(offset, why, Errno::ROFS).into());
        }
        self.check(kind, offset)
    }

    /// Fails from the first failure on.
    fn check(&self, kind: Kind, offset: u64) -> Step {
        match self.failed.get() {
            None if self.closed.load(SeqCst) => {
                Err(kind.failed(offset, "the volume is closed", Errno::SHUTDOWN).into())
            }
            None => Ok(()),
            Some((errno, why)) => Err(kind.failed(offset, why, *errno).into()),
        }
    }

    /// A step after whose failure nothing can be kept together any more.
    fn last<T>(&self, step: Step<T>) -> Step<T> {
        if let Err(Stop::Failed(e)) = &step {
            self.fail(e);
        }
        step
    }

    fn fail(&self, e: &Error) {
        let errno = e.errno().map_or(Errno::IO, Errno::from_raw_os_error);
        if self.failed.set((errno, format!("an earlier error is final: {e}"))).is_ok() {
            log::error!("integrity volume: {e}: nothing is written any more until it is opened again");
        }
    }

    fn superblock(&self) -> MutexGuard<'_, (Superblock, Option<Hash>)> {
        lock(&self.superblock)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
