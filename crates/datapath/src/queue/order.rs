//! Which encrypted write goes down next.

use std::collections::VecDeque;

use super::Queue;
use super::piece::Piece;
use super::run::Step;
use crate::WriteOrder;

/// Writes that wait for others.
pub(super) struct Order {
    /// Encrypted, to be sorted: their lower device and offset.
    sorted: Vec<(usize, u64, u32)>,
    /// Takes the place of `sorted` while that is written.
    spare: Vec<(usize, u64, u32)>,
    /// All that go down as they came, encrypted or not.
    arrivals: VecDeque<u32>,
}

impl Order {
    pub(super) fn new(room: usize) -> Self {
        let list = || Vec::with_capacity(room);
        Self { sorted: list(), spare: list(), arrivals: VecDeque::with_capacity(room) }
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
    /// The next piece of a write is encrypted: it goes down now, or in [`Queue::write_in_order`].
    pub(super) fn encrypted(&mut self, index: u32) -> Step {
        let slot = self.slots.get(index);
        match slot.order {
            WriteOrder::AsReady => self.write_encrypted(index),
            WriteOrder::Sorted => {
                let place = self.volume.as_ref().and_then(|volume| {
                    let segment = &volume.segments()[volume.segment_index(slot.at)?];
                    segment.lower(slot.at)
                });
                let (device, offset) = place.unwrap_or((0, slot.at));
                self.order.sorted.push((device, offset, index));
                Step::Pending
            }
            WriteOrder::Arrival => {
                slot.is_due = true;
                Step::Pending
            }
        }
    }

    /// True when a change that must not be reordered goes down now. If not, it waits for its turn.
    pub(super) fn is_its_turn(&mut self, index: u32) -> bool {
        let turn = self.order.arrivals.front() == Some(&index);
        self.slots.get(index).is_due = !turn;
        turn
    }

    /// Writes what may go down now. False when there was nothing. This is the one place from which writes are submitted
    /// that wait for others: whatever lets them go on comes here afterwards.
    pub(super) fn write_in_order(&mut self) -> bool {
        let sorted = self.write_sorted();
        self.write_arrivals() || sorted
    }

    /// Writes what has been encrypted since the last time, by sector: this thread is the one submitter.
    fn write_sorted(&mut self) -> bool {
        if self.order.sorted.is_empty() {
            return false;
        }
        self.order.sorted.sort_unstable();
        // What is written may end and let others begin, whose turn is the next time.
        let mut batch = std::mem::replace(&mut self.order.sorted, std::mem::take(&mut self.order.spare));
        for (_, _, index) in batch.drain(..) {
            let step = self.write_encrypted(index);
            self.went_on(index, step);
        }
        self.order.spare = batch;
        true
    }

    /// Writes from the front of the line, as far as it is encrypted.
    fn write_arrivals(&mut self) -> bool {
        let mut any = false;
        while let Some(&index) = self.order.arrivals.front() {
            let slot = self.slots.get(index);
            // What waits to be decrypted is due as well, but not here.
            if !slot.is_due || slot.job.reads() {
                break;
            }
            any = true;
            if slot.job.writes_data() {
                self.leave_line(index);
                let step = self.write_encrypted(index);
                self.went_on(index, step);
            } else {
                slot.is_due = false;
                self.run(index);
            }
        }
        any
    }

    /// The next piece of a write goes down. One of several pieces keeps its place in the line until the last one goes.
    pub(super) fn leave_line(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let piece = self.volume.as_ref().and_then(|volume| Piece::of(volume, slot));
        if piece.is_none_or(|piece| piece.at + piece.len >= slot.end) {
            self.order.forget(index);
        }
    }
}
