//! The possible contents of one player's blocks.
//!
//! A block has the contents of the last acknowledged write, or of a later one that failed. After a
//! power cut it may also have those of any write since the last flush, or of the last one before
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::dice::mix;
use super::round::Setup;

/// The smallest block, in bytes.
pub(crate) const UNIT: u64 = 512;

/// The contents of a block: bytes that only this number makes.
pub(crate) type Stamp = u64;
pub(crate) const ZEROS: Stamp = 0;
/// The block was discarded, or never written.
pub(crate) const ANYTHING: Stamp = u64::MAX;

pub(crate) struct Disk {
    blocks: Vec<Block>,
    /// Counts events of all players' blocks.
    clock: Arc<AtomicU64>,
    /// Acknowledged writes are not safe before a flush.
    is_volatile: bool,
    /// A write that fails may leave a block that cannot be read.
    tears: bool,
}

#[derive(Clone)]
struct Block {
    /// The possible contents if no later change has reached the disk.
    base: Vec<Stamp>,
    since: Vec<Change>,
    in_flight: u32,
    /// The time at which a write to the block last began or ended.
    touched: u64,
    /// True when a power cut or a failed write may have torn the block; `mended` is the time when
    /// it was written again after that.
    torn: bool,
    mended: u64,
}

#[derive(Clone)]
struct Change {
    id: u64,
    stamp: Stamp,
    acknowledged: Option<u64>,
}

impl Disk {
    pub(crate) fn new(bytes: u64, setup: &Setup, clock: Arc<AtomicU64>) -> Self {
        let block =
            Block { base: vec![ANYTHING], since: vec![], in_flight: 0, touched: 0, torn: false, mended: 0 };
        let blocks = vec![block; usize::try_from(bytes / UNIT).unwrap()];
        Self { blocks, clock, is_volatile: setup.is_volatile(), tears: setup.may_tear() }
    }

    pub(crate) fn now(&self) -> u64 {
        tick(&self.clock)
    }

    fn range(&mut self, offset: u64, len: u64) -> &mut [Block] {
        let place = |at: u64| usize::try_from(at / UNIT).unwrap();
        &mut self.blocks[place(offset)..place(offset + len)]
    }

    /// Begins a change, and returns its number.
    pub(crate) fn begin(&mut self, offset: u64, len: u64, stamp: Stamp) -> u64 {
        let now = self.now();
        for block in self.range(offset, len) {
            block.since.push(Change { id: now, stamp, acknowledged: None });
            block.in_flight += 1;
            block.touched = now;
        }
        now
    }

    /// Ends a change; `durable`: it is safe from a power cut.
    pub(crate) fn end(&mut self, offset: u64, len: u64, id: u64, ok: bool, durable: bool) {
        let now = self.now();
        let safe = ok && (durable || !self.is_volatile);
        let tears = !ok && self.tears;
        for block in self.range(offset, len) {
            block.in_flight -= 1;
            block.touched = now;
            block.torn |= tears;
            // A power cut has forgotten the order of changes in flight.
            let Some(at) = block.since.iter().position(|change| change.id == id) else { continue };
            if ok {
                block.mended = if block.torn { now } else { block.mended };
                block.torn = false;
                block.since[at].acknowledged = Some(now);
            }
            if safe {
                block.settle(at);
            }
        }
    }

    /// Notes that a flush, submitted at `begun` by any player, has succeeded.
    pub(crate) fn flushed(&mut self, begun: u64) {
        for block in &mut self.blocks {
            let safe = |change: &Change| change.acknowledged.is_some_and(|at| at < begun);
            if let Some(at) = block.since.iter().rposition(safe) {
                block.settle(at);
            }
        }
    }

    /// Notes a power cut; no request is in flight any more.
    pub(crate) fn cut(&mut self) {
        for block in &mut self.blocks {
            assert_eq!(block.in_flight, 0);
            let written = std::mem::take(&mut block.since);
            block.torn |= !written.is_empty();
            block.base.extend(written.into_iter().map(|change| change.stamp));
            block.base.sort_unstable();
            block.base.dedup();
        }
    }

    /// Checks the bytes of a read that began at `since`, and returns the number of checked blocks.
    /// Blocks that were written meanwhile may have any contents.
    ///
    /// # Panics
    /// When a block's contents are impossible.
    pub(crate) fn check(
        &mut self,
        offset: u64,
        data: &[u8],
        since: u64,
        mine: impl Fn(u64) -> bool,
    ) -> usize {
        let mut checked = 0;
        let blocks = self.range(offset, data.len() as u64);
        for ((number, block), bytes) in (offset / UNIT..).zip(blocks).zip(data.chunks(512)) {
            if !mine(number) || block.in_flight > 0 || block.touched > since {
                continue;
            }
            let possible = block.possible();
            if possible.contains(&ANYTHING) {
                continue;
            }
            checked += 1;
            let Some(found) = possible.iter().find(|stamp| holds(bytes, **stamp, number)) else {
                let others = block.base.iter().chain(block.since.iter().map(|change| &change.stamp));
                let old: Vec<_> = others.filter(|stamp| holds(bytes, **stamp, number)).collect();
                panic!(
                    "block {number} (byte {}) is none of {possible:x?}; of what it was it is {old:x?}; it begins with \
                     {:x?}; base {:x?}",
                    number * UNIT,
                    &bytes[..16],
                    block.base
                );
            };
            if block.since.is_empty() {
                block.base = vec![*found];
            }
        }
        checked
    }

    /// True when a read that began at `since` may have met a torn block, also one torn by a write
    /// whose failure is reported later.
    pub(crate) fn may_be_torn(&mut self, offset: u64, len: u64, since: u64) -> bool {
        let tears = self.tears;
        let may_tear = |block: &Block| tears && (block.in_flight > 0 || block.touched > since);
        self.range(offset, len).iter().any(|block| block.torn || block.mended > since || may_tear(block))
    }

    /// Copies the blocks of another model that are `mine`.
    pub(crate) fn take_over(&mut self, other: &Self, mine: impl Fn(u64) -> bool) {
        for (number, (block, theirs)) in (0..).zip(self.blocks.iter_mut().zip(&other.blocks)) {
            if mine(number) {
                *block = theirs.clone();
            }
        }
    }
}

/// Advances the clock, which never stands still.
pub(crate) fn tick(clock: &AtomicU64) -> u64 {
    clock.fetch_add(1, SeqCst) + 1
}

impl Block {
    /// Makes a change permanent, and forgets earlier ones.
    fn settle(&mut self, at: usize) {
        self.base = vec![self.since[at].stamp];
        self.since.drain(..=at);
    }

    /// The possible contents while the power stays on.
    fn possible(&self) -> Vec<Stamp> {
        let last = self.since.iter().rposition(|change| change.acknowledged.is_some());
        let later = self.since[last.unwrap_or(0)..].iter().map(|change| change.stamp);
        match last {
            Some(_) => later.collect(),
            None => self.base.iter().copied().chain(later).collect(),
        }
    }
}

/// Fills blocks from the byte `offset` of the volume.
pub(crate) fn fill(data: &mut [u8], offset: u64, stamp: Stamp) {
    for (number, bytes) in (offset / UNIT..).zip(data.chunks_mut(512)) {
        let first = mix(stamp ^ mix(number));
        for (i, word) in (1..).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&first.wrapping_mul(2 * i + 1).to_le_bytes());
        }
    }
}

fn holds(bytes: &[u8], stamp: Stamp, number: u64) -> bool {
    if stamp == ZEROS {
        return bytes.iter().all(|byte| *byte == 0);
    }
    let mut expected = [0; 512];
    fill(&mut expected, number * UNIT, stamp);
    bytes == expected
}
