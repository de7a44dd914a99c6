//! Which encrypted write goes down next.

use std::collections::VecDeque;

use crate::piece::Piece;

/// Writes that wait for others.
pub(super) struct WriteQueue {
    /// Encrypted, to be sorted: their lower device and offset.
    sorted: Batch,
    /// Takes the place of `sorted` while that is written.
    spare: Batch,
    /// All that go down as they came, encrypted or not.
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

    /// A write that goes down after all that came before it.
    pub(super) fn arrived(&mut self, index: u32) {
        self.arrivals.push_back(index);
    }

    /// The one of those whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        self.arrivals.front().copied()
    }

    /// It goes down no more, or has gone.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(at) = self.arrivals.iter().position(|other| *other == index) {
            self.arrivals.remove(at);
        }
    }

    /// A write that goes down in the order of sectors.
    pub(super) fn sort(&mut self, piece: &Piece, index: u32) {
        self.sorted.push((piece.device, piece.lower, index));
    }

    /// What has come together since the last time, by sector. It is to be
    /// [given back](WriteQueue::reuse).
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
