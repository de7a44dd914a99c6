//! The journal of a running volume: a ring of sections, filled in memory, written whole, and copied
//! back later.
//!
//! ```text
//!        oldest                                                    newest
//!          |  copied back in runs  |   written   |  closed  | being filled |  free ..
//!          ^ copied first                                          numbers rise, the ring wraps ^
//! ```
//!
//! Section numbers never repeat; the number modulo the ring's length is the place, and the round
//! rises where that is 0. The rules of consistency:
//! - A section is written when no thread fills it any more, after the earlier sections or together
//!   with some of them: a disk's cache keeps no order either. A flush makes all of them durable. So
//!   replay, from the oldest section on, never ends before a flush.
//! - A block is copied to its place only from a durable section; sections are free when copies and
//!   tags are durable.
//! - An older entry of a block that was written again is not copied. The section that takes its
//!   section's place is then not written before all sections from the time of the freeing are
//!   durable (`after`).
//! - A block in `newest` is read from there. It leaves the map when data and tag are in their
//!   places, unless it was written again.
//!
//! Locks, in the order in which they are taken: `copies` (held to copy back), `commits` (held to
//! write sections), `state` (short: no I/O and no copying), a section's image.

mod copy_back;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use super::lock;
use super::lower::{LowerDisks, Side, StepResult, may_wait};
use super::open::as_device_error;
use crate::{JournalFormat, JournalRound, VolumeGeometry};

/// Bytes of sections in one write.
const TOGETHER: usize = 1 << 20;

/// A volume's journal.
pub(super) struct Journal {
    geometry: VolumeGeometry,
    sections: JournalFormat,
    /// The most sections in use at a time.
    window: usize,
    /// The number of sections in use from which they are copied back.
    watermark: usize,
    state: Mutex<State>,
    /// Notified when a section that a commit waits for is filled.
    filled: Condvar,
    /// Held to write sections: memory for sections in one write, where the disk has them encrypted.
    commits: Mutex<Vec<u8>>,
    /// Held to copy back: memory for the tags of a run.
    copies: Mutex<Vec<u8>>,
}

struct State {
    /// Sections in use, the oldest first.
    slots: VecDeque<Slot>,
    /// The number of the oldest section in use.
    first: u64,
    /// The place and the round of the next section.
    next: (u32, JournalRound),
    /// Sections with lower numbers are written.
    written: u64,
    /// Sections with lower numbers are durable.
    durable: u64,
    /// Freed sections: those below the first number, and the sections that must be durable before
    /// they are overwritten.
    freed: VecDeque<(u64, u64)>,
    /// The newest data of each block that is not in its place.
    newest: BTreeMap<u64, Location>,
    spare: Vec<Vec<u8>>,
    /// Sections were used since the ring was last empty on disk.
    changed: bool,
}

struct Slot {
    section: Arc<Section>,
    entries: usize,
    /// The number of threads that are copying into the section.
    filling: usize,
    /// True when the section takes no more entries.
    closed: bool,
    /// The time of the first entry.
    since: Instant,
}

struct Section {
    index: u32,
    round: JournalRound,
    /// Sections with lower numbers must be durable before this one is written.
    after: u64,
    /// The section as on the disk, but for encryption: filled, then sealed if the journal is not
    /// encrypted. The ends of the blocks' sectors are in the entries, and after the write may be in
    /// their places, too.
    image: RwLock<Vec<u8>>,
}

impl Section {
    fn image(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.image.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn image_mut(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.image.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    section: u64,
    entry: usize,
}

/// A block with its newest data in the journal.
pub(super) struct JournaledBlock {
    pub(super) block: u64,
    section: Arc<Section>,
    location: Location,
}

/// Entries that a thread copies into.
struct ReservedEntries {
    section: Arc<Section>,
    number: u64,
    entries: Range<usize>,
}

impl Journal {
    /// A journal that continues with section `next.0` in round `next.1`, with up to `bytes` of
    /// sections in memory.
    pub(super) fn new(
        geometry: VolumeGeometry,
        sections: JournalFormat,
        next: (u32, JournalRound),
        (bytes, watermark): (usize, u8),
    ) -> Self {
        let most = usize::try_from(geometry.sections()).unwrap_or(usize::MAX);
        let window = (bytes / geometry.section().bytes()).clamp(1, most);
        let watermark = (window * usize::from(watermark.min(100)) / 100).max(1);
        let state = State {
            slots: VecDeque::new(),
            first: 0,
            next,
            written: 0,
            durable: 0,
            freed: VecDeque::new(),
            newest: BTreeMap::new(),
            spare: Vec::new(),
            changed: false,
        };
        Self {
            geometry,
            sections,
            window,
            watermark,
            state: state.into(),
            filled: Condvar::new(),
            commits: Mutex::default(),
            copies: Mutex::default(),
        }
    }

    /// Puts the first blocks, as many as fit, into the journal, and returns their number. The
    /// caller has locked them exclusively.
    pub(super) fn put(&self, block: u64, data: &[u8], tags: &[u8]) -> usize {
        let size = self.geometry.block_size();
        let Some(taken) = self.take(data.len() / size) else { return 0 };
        let count = taken.entries.len();
        {
            let mut image = taken.section.image_mut();
            let blocks = data.chunks_exact(size).zip(tags.chunks_exact(self.geometry.tag_size()));
            for ((entry, block), (data, tag)) in taken.entries.clone().zip(block..).zip(blocks) {
                let sector = block * self.geometry.block_sectors();
                self.geometry.section().fill(&mut image, entry, sector, data, tag);
            }
        }
        let mut state = self.state();
        for (entry, block) in taken.entries.zip(block..) {
            state.newest.insert(block, Location { section: taken.number, entry });
        }
        let at = slot(&state, taken.number);
        state.slots[at].filling -= 1;
        if state.slots[at].filling == 0 && state.slots[at].closed {
            self.filled.notify_all();
        }
        count
    }

    /// True when `blocks` blocks fit at once, unless other writers take the room first.
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        let room = self.geometry.section().entries();
        let state = self.state();
        let begun = state.slots.back().filter(|last| !last.closed).map_or(0, |last| room - last.entries);
        begun + (self.window - state.slots.len()) * room >= blocks
    }

    /// Reserves up to `wanted` entries of one section.
    fn take(&self, wanted: usize) -> Option<ReservedEntries> {
        let room = self.geometry.section().entries();
        let mut state = self.state();
        if state.slots.back().is_none_or(|last| last.closed) {
            if state.slots.len() == self.window {
                return None;
            }
            state.open_section(&self.geometry);
        }
        let number = state.first + state.slots.len() as u64 - 1;
        let last = state.slots.back_mut()?;
        let entries = last.entries..(last.entries + wanted).min(room);
        last.entries = entries.end;
        last.filling += 1;
        last.closed = last.entries == room;
        let section = last.section.clone();
        Some(ReservedEntries { section, number, entries })
    }

    /// The blocks of a range that are in the journal, in order. The caller has locked them.
    pub(super) fn find(&self, blocks: Range<u64>) -> Vec<JournaledBlock> {
        let state = self.state();
        state.newest.range(blocks).map(|(&block, &location)| state.found(block, location)).collect()
    }

    /// Copies a found block and its tag.
    pub(super) fn get(&self, found: &JournaledBlock, data: &mut [u8], tag: &mut [u8]) {
        let image = found.section.image();
        let (shape, entry) = (self.geometry.section(), found.location.entry);
        shape.block(&image, entry, data);
        tag.copy_from_slice(shape.tag(&image, entry, tag.len()));
    }

    /// True when sections should be written or copied back, before a request needs room.
    pub(super) fn wants_tending(&self) -> bool {
        let state = self.state();
        let closed = state.slots.iter().filter(|slot| slot.closed).count();
        closed >= self.watermark || state.first + closed as u64 > state.written + self.window as u64 / 8
    }

    /// The time of the oldest entries that are not durable.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let state = self.state();
        state.slots.get(slot(&state, state.durable)).map(|slot| slot.since)
    }

    /// The number of sections in use, and its limit.
    pub(super) fn in_use(&self) -> (usize, usize) {
        (self.state().slots.len(), self.window)
    }

    /// Makes earlier entries durable. One commit serves all waiting threads.
    pub(super) fn flush(&self, lower: &mut dyn LowerDisks) -> StepResult {
        may_wait(lower)?;
        let all = {
            let state = self.state();
            // Every opened section has entries.
            state.first + state.slots.len() as u64
        };
        let mut memory = lock(&self.commits);
        if self.state().durable >= all {
            return Ok(());
        }
        self.commit(lower, &mut memory, true, true)
    }

    /// Writes the full sections.
    pub(super) fn write_full(&self, lower: &mut dyn LowerDisks) -> StepResult {
        let mut memory = lock(&self.commits);
        self.commit(lower, &mut memory, false, false)
    }

    /// Writes the closed sections in order; `close`: also the one that is being filled; `durable`:
    /// all are on the disk then.
    fn commit(
        &self,
        lower: &mut dyn LowerDisks,
        memory: &mut Vec<u8>,
        close: bool,
        durable: bool,
    ) -> StepResult {
        let (first, sections) = self.closed(close);
        let end = first + sections.len() as u64;
        // A single section after durable ones needs no flush of all writes.
        let alone = durable && sections.len() == 1 && self.state().durable == first;
        let (mut rest, mut next) = (&sections[..], first);
        while let Some(section) = rest.first() {
            let mut is_durable = self.state().durable;
            if is_durable < section.after {
                lower.flush(Side::Meta)?;
                is_durable = next;
                self.state().durable = next;
            }
            let size = self.geometry.section().bytes();
            let together = rest.iter().take((TOGETHER / size).max(1));
            let (group, others) =
                rest.split_at(together.take_while(|s| s.after <= is_durable).count().max(1));
            self.write_sections(lower, group, memory, alone)?;
            next += group.len() as u64;
            self.state().written = next;
            rest = others;
        }
        if durable && !alone && self.state().durable < end {
            lower.flush(Side::Meta)?;
        }
        if durable {
            self.state().durable = end;
        }
        Ok(())
    }

    /// Writes sections: from their images, unless the disk has them encrypted. `durable`: they are
    /// on the disk then.
    fn write_sections(
        &self,
        lower: &mut dyn LowerDisks,
        group: &[Arc<Section>],
        memory: &mut Vec<u8>,
        durable: bool,
    ) -> StepResult {
        let seal = |section: &Section, image: &mut [u8]| {
            self.sections.seal(section.index, section.round, image).map_err(as_device_error)
        };
        let size = self.geometry.section().bytes();
        let in_place = self.sections.seals_in_place();
        memory.clear();
        for section in group {
            if in_place {
                seal(section, &mut section.image_mut())?;
            } else {
                let start = memory.len();
                memory.extend_from_slice(&section.image());
                seal(section, &mut memory[start..])?;
            }
        }
        let images: Vec<_> = group.iter().filter(|_| in_place).map(|section| section.image()).collect();
        let images = images.iter().map(|image| &image[..]).chain(memory.chunks_exact(size));
        let places = group.iter().map(|section| self.geometry.section_offset(section.index));
        let parts: Vec<_> = places.zip(images).collect();
        if durable {
            return parts.into_iter().try_for_each(|(at, image)| lower.write(Side::Meta, at, image, true));
        }
        lower.write_all(Side::Meta, &parts)
    }

    /// The closed sections that are not written, once no thread writes to them, and the number of
    /// the first.
    fn closed(&self, close: bool) -> (u64, Vec<Arc<Section>>) {
        let mut state = self.state();
        if close && let Some(last) = state.slots.back_mut() {
            last.closed = true;
        }
        let first = state.written;
        let count = state.slots.iter().skip(slot(&state, first)).take_while(|slot| slot.closed).count();
        loop {
            // Older ones may be freed meanwhile; these stay, since they are not written.
            let from = slot(&state, first);
            if state.slots.range(from..from + count).all(|slot| slot.filling == 0) {
                let sections = state.slots.range(from..from + count).map(|slot| slot.section.clone());
                return (first, sections.collect());
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes a ring of unused sections, so that nothing is replayed. All blocks were copied back.
    pub(super) fn clear(&self, lower: &mut dyn LowerDisks) -> StepResult {
        let _commits = lock(&self.commits);
        let (free, round) = {
            let state = self.state();
            if !state.changed {
                return Ok(());
            }
            state.next
        };
        let later = (0..free).map(|index| (index, round.next()));
        let ring = (free..self.geometry.sections()).map(|index| (index, round)).chain(later);
        write_unused(lower, &self.geometry, &self.sections, ring)?;
        self.state().changed = false;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Takes the next section of the ring.
    fn open_section(&mut self, geometry: &VolumeGeometry) {
        let (index, round) = self.next;
        self.next = match index + 1 {
            end if end == geometry.sections() => (0, round.next()),
            next => (next, round),
        };
        self.changed = true;
        let shape = geometry.section();
        let image = match self.spare.pop() {
            // Old bytes in the image belong to no entry.
            Some(mut image) => {
                (0..shape.entries()).for_each(|entry| shape.set_unused(&mut image, entry));
                image
            }
            None => {
                let mut image = vec![0; shape.bytes()];
                shape.clear(&mut image);
                image
            }
        };
        let number = self.first + self.slots.len() as u64;
        let before = number.checked_sub(u64::from(geometry.sections()));
        while self.freed.front().is_some_and(|(end, _)| before.is_some_and(|before| *end <= before)) {
            self.freed.pop_front();
        }
        // In the first round, replay has copied the old sections back.
        let after = self.freed.front().filter(|_| before.is_some()).map_or(0, |(_, after)| *after);
        let section = Arc::new(Section { index, round, after, image: image.into() });
        self.slots.push_back(Slot { section, entries: 0, filling: 0, closed: false, since: Instant::now() });
    }

    fn found(&self, block: u64, location: Location) -> JournaledBlock {
        JournaledBlock { block, section: self.slots[slot(self, location.section)].section.clone(), location }
    }
}

/// The position of a section among those in use.
fn slot(state: &State, number: u64) -> usize {
    usize::try_from(number - state.first).unwrap_or(usize::MAX)
}

/// Writes sections without entries, each in its round, durably.
pub(super) fn write_unused(
    lower: &mut dyn LowerDisks,
    geometry: &VolumeGeometry,
    sections: &JournalFormat,
    ring: impl Iterator<Item = (u32, JournalRound)>,
) -> StepResult {
    let mut image = sections.section();
    for (index, round) in ring {
        geometry.section().clear(&mut image);
        sections.seal(index, round, &mut image).map_err(as_device_error)?;
        lower.write(Side::Meta, geometry.section_offset(index), &image, false)?;
    }
    lower.flush(Side::Meta)
}
