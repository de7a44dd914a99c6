//! Requests in the caller's memory, here and now: writes that are encrypted there, reads that are decrypted there.

use std::ops::Range;
use std::time::Instant;

use underseal_device::{Buffer, Now};
use underseal_volume::Volume;

use super::super::Queue;
use super::{beyond, no_key};
use crate::piece::{CACHED, Piece, Place};
use crate::slot::{Class, Lock, Op, Slot, Stage};
use crate::stats::{Did, nanos};
use crate::{Dispatch, Result};

impl Queue {
    /// True when a write need not wait for anything but its sectors' lock.
    pub(in super::super) fn writes_straight(&self, range: &Range<u64>) -> bool {
        let policy = self.settings.policy;
        self.is_straight(policy.write, policy.max_write_size, range)
            && !self.mapping.is_zoned()
            && self.order.is_empty()
            && self.writes.is_free(range)
    }

    /// The same of a read.
    pub(in super::super) fn reads_straight(&self, range: &Range<u64>) -> bool {
        let policy = self.settings.policy;
        self.is_straight(policy.read, policy.max_read_size, range) && !self.adaptive.reads_block()
    }

    /// True when this thread does a request in one go: whole sectors, as one part.
    fn is_straight(&self, dispatch: Dispatch, most: Option<u32>, range: &Range<u64>) -> bool {
        let inline = match dispatch {
            Dispatch::Inline => true,
            Dispatch::Adaptive => self.adaptive.is_empty(),
            Dispatch::Workers { .. } | Dispatch::Engine => false,
        };
        let whole = most.is_none_or(|most| range.end - range.start <= u64::from(most));
        inline && whole && !self.settings.suspended && self.widen(range.clone()).1 == 0
    }

    /// Reads and decrypts, if that goes at once. None: the lower device would block.
    pub(in super::super) fn read_now(
        &mut self,
        range: Range<u64>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> Option<Result<()>> {
        let mut at = range.start;
        let arrived = self.now;
        while at < range.end {
            let Some(volume) = self.epochs.current() else { return Some(Err(no_key())) };
            // Tuples are read with their sectors, and as many at once as can be.
            let cached = if tags.is_empty() {
                range.start..range.end.min(at.saturating_add(CACHED))
            } else {
                range.clone()
            };
            let Some(piece) = find(volume, at, &cached, !tags.is_empty()) else {
                return Some(Err(beyond()));
            };
            at = piece.end();
            match piece.place {
                Place::Stored => {}
                Place::Zero => {
                    data[piece.range()].fill(0);
                    continue;
                }
                Place::Error => return Some(Err(piece.error())),
            }
            let began = self.now;
            let now = piece.read_now(&mut *self.channels[piece.device], data, tags);
            self.adaptive.saw_read(matches!(now, Now::Blocked(_)));
            match now {
                Now::Done => {}
                Now::Blocked(_) => return None,
                Now::Failed(e) => return Some(Err(self.unread(&piece, e))),
            }
            let came = Instant::now();
            self.post.stats.lower.record(nanos(came.saturating_duration_since(began)), 1);
            if let Err(refused) = piece.decrypt(volume, data, tags) {
                return Some(Err(self.broken(true, refused)));
            }
            let latency = self.tick().saturating_duration_since(came);
            self.post.stats.crypto.record(nanos(latency), 1);
            self.post.stats.did(Did::Inline);
        }
        self.over_at_once(Class::Read, arrived, data.len());
        Some(Ok(()))
    }

    /// Writes scratch memory as far as that goes at once. What was reached, and how it ended; the piece at which it
    /// stopped is encrypted whole, and its tuples are there.
    pub(in super::super) fn write_now(
        &mut self,
        range: Range<u64>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> (u64, Result<()>) {
        let mut at = range.start;
        let arrived = self.now;
        while at < range.end {
            let Some(volume) = self.epochs.current() else { return (at, Err(no_key())) };
            let Some(piece) = find(volume, at, &range, !tags.is_empty()) else {
                return (at, Err(beyond()));
            };
            match piece.place {
                Place::Stored => {}
                Place::Zero => {
                    at = piece.end();
                    continue;
                }
                Place::Error => return (at, Err(piece.error())),
            }
            let began = self.now;
            if let Err(refused) = piece.encrypt(volume, data, tags) {
                return (at, Err(refused.into()));
            }
            self.now = Instant::now();
            let encrypted = self.now;
            self.post.stats.crypto.record(nanos(encrypted.saturating_duration_since(began)), 1);
            self.post.stats.did(Did::Inline);
            match piece.write_now(&mut *self.channels[piece.device], data, tags) {
                Now::Done => at = piece.end(),
                Now::Blocked(_) => return (at, Ok(())),
                Now::Failed(e) => return (at, Err(self.lower(piece.device, e))),
            }
            let latency = self.tick().saturating_duration_since(encrypted);
            self.post.stats.lower.record(nanos(latency), 1);
        }
        self.over_at_once(Class::Write, arrived, data.len());
        (at, Ok(()))
    }

    fn over_at_once(&self, class: Class, arrived: Instant, bytes: usize) {
        self.post.stats.queued.record(0, 1);
        self.post.stats.total.record(nanos(self.now.saturating_duration_since(arrived)), 1);
        self.count(class, bytes as u64, true);
    }

    /// Goes on with a write that did not go down at once: the piece at `at` is encrypted already.
    pub(in super::super) fn write_rest(
        &mut self,
        tag: u64,
        range: Range<u64>,
        at: u64,
        (buffer, tags): (Buffer, Option<Buffer>),
        lock: Lock,
    ) {
        let piece = self.epochs.current().and_then(|volume| find(volume, at, &range, tags.is_some()));
        let slot = Slot::new(Op::Write { durable: false }, range.clone(), None, Class::Write, self.now);
        let epoch = self.epochs.pin();
        let stage = Stage::Ready(None);
        let piece = piece.unwrap_or(Piece::NONE);
        let index = self.enter(Slot { tag, at, epoch, stage, piece, lock, tags, ..slot });
        // Nothing overlaps: it was asked before.
        self.writes.enter(range, index);
        let step = self.write(index, buffer);
        self.went_on(index, step);
    }
}

/// The piece at `at` of a request in the caller's memory, in a volume that may keep tuples.
fn find(volume: &Volume, at: u64, range: &Range<u64>, is_tagged: bool) -> Option<Piece> {
    let piece = Piece::find(volume, at, range.end, range.start)?;
    Some(if is_tagged { piece.with_tags(volume) } else { piece })
}
