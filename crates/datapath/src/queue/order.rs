//! Which encrypted write goes down next.

use std::collections::VecDeque;

use super::Queue;
use crate::WriteOrder;

/// Writes that wait for others.
pub(super) struct Order {
    /// Encrypted, to be sorted: their lower device and offset.
    sorted: Vec<(usize, u64, u32)>,
    /// All that go down as they came, encrypted or not.
    arrivals: VecDeque<u32>,
}

impl Order {
    pub(super) fn new(room: usize) -> Self {
        Self { sorted: Vec::with_capacity(room), arrivals: VecDeque::with_capacity(room) }
    }

    /// True when no write waits for another.
    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.arrivals.is_empty()
    }

    /// A write that goes down after all that came before it.
    pub(super) fn arrived(&mut self, index: u32) {
        self.arrivals.push_back(index);
    }

    /// It goes down no more, or has gone.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(at) = self.arrivals.iter().position(|other| *other == index) {
            self.arrivals.remove(at);
        }
    }
}

impl Queue {
    /// The next piece of a write is encrypted.
    pub(super) fn encrypted(&mut self, index: u32) {
        let slot = self.slots.get(index);
        slot.is_due = true;
        match slot.order {
            WriteOrder::AsReady => self.write_encrypted(index),
            WriteOrder::Sorted => {
                let place = self.volume.as_ref().and_then(|volume| {
                    let segment = &volume.segments()[volume.segment_index(slot.at)?];
                    Some((segment.device, segment.lower_offset(slot.at)))
                });
                let (device, offset) = place.unwrap_or((0, slot.at));
                self.order.sorted.push((device, offset, index));
            }
            WriteOrder::Arrival => self.write_arrivals(),
        }
    }

    /// Writes what has been encrypted since the last time, by sector: this thread is the one submitter.
    pub(super) fn write_sorted(&mut self) {
        self.order.sorted.sort_unstable();
        // What is written may end and let others begin, whose turn is the next time.
        let mut batch = std::mem::take(&mut self.order.sorted);
        for (_, _, index) in batch.drain(..) {
            self.write_encrypted(index);
        }
        if self.order.sorted.is_empty() {
            self.order.sorted = batch;
        }
    }

    /// Writes from the front of the line, as far as it is encrypted.
    pub(super) fn write_arrivals(&mut self) {
        while let Some(&index) = self.order.arrivals.front() {
            let slot = self.slots.get(index);
            if !slot.is_due {
                return;
            }
            let is_last = self.volume.as_ref().is_none_or(|volume| {
                super::piece::Piece::of(volume, slot).is_none_or(|piece| piece.at + piece.len >= slot.end)
            });
            // A write of several pieces keeps its place until the last one goes.
            if is_last {
                self.order.arrivals.pop_front();
            }
            self.write_encrypted(index);
        }
    }
}
