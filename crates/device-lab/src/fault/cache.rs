//! A drive's volatile cache, modelled by the bytes that it may lose.

use std::collections::BTreeMap;

use super::rule::Dice;

/// The number of a write.
pub(super) type Write = u64;

/// The contents of each block before the writes that are not durable yet.
pub(super) struct Cache {
    block: u64,
    /// The device's size. The last block may be shorter.
    size: u64,
    /// The old contents by block number, oldest first.
    blocks: BTreeMap<u64, Vec<OldBlock>>,
    next: Write,
    in_flight: Vec<Write>,
}

/// A block before a write.
struct OldBlock {
    write: Write,
    bytes: Box<[u8]>,
}

/// The writes that a flush makes durable: those that had ended when the flush began.
pub(super) struct FlushedWrites {
    below: Write,
    except: Vec<Write>,
}

impl FlushedWrites {
    fn has(&self, write: Write) -> bool {
        write < self.below && !self.except.contains(&write)
    }
}

impl Cache {
    pub(super) fn new(block: u64, size: u64) -> Self {
        Self { block, size, blocks: BTreeMap::new(), next: 0, in_flight: Vec::new() }
    }

    /// Returns the number of blocks that may be lost.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Begins a write.
    pub(super) fn begin(&mut self) -> Write {
        self.next += 1;
        self.in_flight.push(self.next - 1);
        self.next - 1
    }

    /// Returns the range of whole blocks that a range touches.
    pub(super) fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let end = offset.saturating_add(len).div_ceil(self.block).saturating_mul(self.block);
        (offset / self.block * self.block, end.min(self.size))
    }

    /// Saves the bytes at `offset`, the start of a block, as they were before `write`.
    pub(super) fn save(&mut self, write: Write, offset: u64, bytes: &[u8]) {
        let length = usize::try_from(self.block).unwrap_or(usize::MAX);
        for (number, bytes) in (offset / self.block..).zip(bytes.chunks(length)) {
            self.blocks.entry(number).or_default().push(OldBlock { write, bytes: bytes.into() });
        }
    }

    /// Ends a write. With `durable`, its blocks are on the medium.
    pub(super) fn end(&mut self, write: Write, durable: bool) {
        self.in_flight.retain(|&w| w != write);
        if !durable {
            return;
        }
        self.blocks.retain(|_, before| {
            if let Some(index) = before.iter().position(|b| b.write == write) {
                before.drain(..=index);
            }
            !before.is_empty()
        });
    }

    /// Begins a flush.
    pub(super) fn cover(&self) -> FlushedWrites {
        FlushedWrites { below: self.next, except: self.in_flight.clone() }
    }

    /// Ends a successful flush.
    pub(super) fn flushed(&mut self, covered: &FlushedWrites) {
        self.blocks.retain(|_, before| {
            let durable = before.iter().take_while(|b| covered.has(b.write)).count();
            before.drain(..durable);
            !before.is_empty()
        });
    }

    /// Cuts the power: returns the blocks to be restored, and their offsets. Every state that a
    /// block went through has the same probability.
    pub(super) fn lose(&mut self, dice: &mut Dice) -> Vec<(u64, Box<[u8]>)> {
        self.in_flight.clear();
        let mut lost = Vec::new();
        for (number, mut before) in std::mem::take(&mut self.blocks) {
            let state = usize::try_from(dice.below(before.len() as u64 + 1)).unwrap_or(0);
            if state < before.len() {
                lost.push((number * self.block, before.swap_remove(state).bytes));
            }
        }
        lost
    }
}
