//! The order in which encrypted writes are submitted.

use std::collections::VecDeque;

use crate::piece::Piece;

/// Writes that wait for their turn.
pub(super) struct WriteQueue {
    /// Encrypted writes to be sorted: lower device, offset, slot.
    sorted: Batch,
    /// Replaces `sorted` while that is being written.
    spare: Batch,
    /// Writes to be submitted in order of arrival, encrypted or not.
    arrivals: VecDeque<u32>,
}

type Batch = Vec<(usize, u64, u32)>;

impl WriteQueue {
    pub(super) fn new(room: usize) -> Self {
        let list = || Vec::with_capacity(room);
        Self { sorted: list(), spare: list(), arrivals: VecDeque::with_capacity(room) }
    }

    /// True when no write waits for another.
    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty() && self.arrivals.is_empty()
    }

    /// Adds a write that is submitted after all earlier ones.
    pub(super) fn arrived(&mut self, index: u32) {
        self.arrivals.push_back(index);
    }

    /// The write whose turn it is, in order of arrival.
    pub(super) fn first(&self) -> Option<u32> {
        self.arrivals.front().copied()
    }

    /// Removes a write that has been submitted or has failed.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(at) = self.arrivals.iter().position(|other| *other == index) {
            self.arrivals.remove(at);
        }
    }

    /// Adds a write that is submitted in the order of sectors.
    pub(super) fn sort(&mut self, piece: &Piece, index: u32) {
        self.sorted.push((piece.device, piece.lower, index));
    }

    /// Returns the writes since the last call, by sector. The caller [returns the
    /// list](WriteQueue::reuse).
    pub(super) fn batch(&mut self) -> Option<Batch> {
        if self.sorted.is_empty() {
            return None;
        }
        self.sorted.sort_unstable();
        Some(std::mem::replace(&mut self.sorted, std::mem::take(&mut self.spare)))
    }

    pub(super) fn reuse(&mut self, batch: Batch) {
        self.spare = batch;
    }
}
