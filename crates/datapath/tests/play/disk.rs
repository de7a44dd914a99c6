//! What the blocks of one player may hold.
//!
//! A block is what the last acknowledged write put there, or a later one that failed. After a power
//! cut it may also be anything that was written since the last flush, or before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::dice::mix;
use super::round::Setup;

/// The smallest block, in bytes.
pub(crate) const UNIT: u64 = 512;

/// What a block holds: bytes that only this number makes.
pub(crate) type Stamp = u64;
pub(crate) const ZEROS: Stamp = 0;
/// It was discarded, or never written.
pub(crate) const ANYTHING: Stamp = u64::MAX;

pub(crate) struct Disk {
    blocks: Vec<Block>,
    /// Counts what happens to all players' blocks.
    clock: Arc<AtomicU64>,
    /// What is acknowledged is not safe before a flush.
    is_volatile: bool,
    /// A write that fails may leave a block that cannot be read.
    tears: bool,
}

#[derive(Clone)]
struct Block {
    /// It holds one of these if nothing that came since is there.
    base: Vec<Stamp>,
    since: Vec<Change>,
    in_flight: u32,
    /// When a write to it last began or ended.
    touched: u64,
    /// A power cut, or a write that failed, may have torn it, and since when it was written again
    /// after that.
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

    /// A change begins. Its number.
    pub(crate) fn begin(&mut self, offset: u64, len: u64, stamp: Stamp) -> u64 {
        let now = self.now();
        for block in self.range(offset, len) {
            block.since.push(Change { id: now, stamp, acknowledged: None });
            block.in_flight += 1;
            block.touched = now;
        }
        now
    }

    /// It is over; `durable`: it was asked to be safe from a power cut.
    pub(crate) fn end(&mut self, offset: u64, len: u64, id: u64, ok: bool, durable: bool) {
        let now = self.now();
        let safe = ok && (durable || !self.is_volatile);
        let tears = !ok && self.tears;
        for block in self.range(offset, len) {
            block.in_flight -= 1;
            block.touched = now;
            block.torn |= tears;
            // A power cut has forgotten the order of what was in flight.
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

    /// A flush that was submitted at `begun`, by any player, has succeeded.
    pub(crate) fn flushed(&mut self, begun: u64) {
        for block in &mut self.blocks {
            let safe = |change: &Change| change.acknowledged.is_some_and(|at| at < begun);
            if let Some(at) = block.since.iter().rposition(safe) {
                block.settle(at);
            }
        }
    }

    /// The power was cut, and nothing is in flight any more.
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

    /// Checks what was read; `since` is the time when the read began. Blocks that were written
    /// meanwhile may be anything. How many were checked.
    ///
    /// # Panics
    /// When a block holds what it cannot.
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

    /// Whether a read that began at `since` may have met a block that was torn, also by a write
    /// whose failure is told later.
    pub(crate) fn may_be_torn(&mut self, offset: u64, len: u64, since: u64) -> bool {
        let tears = self.tears;
        let may_tear = |block: &Block| tears && (block.in_flight > 0 || block.touched > since);
        self.range(offset, len).iter().any(|block| block.torn || block.mended > since || may_tear(block))
    }

    /// Takes over the blocks of another model that are `mine`.
    pub(crate) fn take_over(&mut self, other: &Self, mine: impl Fn(u64) -> bool) {
        for (number, (block, theirs)) in (0..).zip(self.blocks.iter_mut().zip(&other.blocks)) {
            if mine(number) {
                *block = theirs.clone();
            }
        }
    }
}

/// The time, which never stands still.
pub(crate) fn tick(clock: &AtomicU64) -> u64 {
    clock.fetch_add(1, SeqCst) + 1
}

impl Block {
    /// Whatever came before this change is gone for good.
    fn settle(&mut self, at: usize) {
        self.base = vec![self.since[at].stamp];
        self.since.drain(..=at);
    }

    /// What it may hold while the power stays.
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
