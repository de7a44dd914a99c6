//! The fast path of a small write: encrypted in the caller's memory and written from there, on the
//! caller's thread.

use std::ops::Range;
use std::time::Instant;

use underseal_device::{Buffer, Immediate};
use underseal_volume::Volume;

use super::super::Queue;
use super::{beyond, no_key};
use crate::piece::{Piece, PieceKind};
use crate::slot::{LockState, RequestClass, Slot, SlotOperation, SlotStage};
use crate::stats::{CryptoSite, nanos};
use crate::{Dispatch, Result};

impl Queue {
    /// True when a write needs only its range lock: whole sectors, one part, an inline policy, and
    /// no overlapping request.
    pub(in super::super) fn writes_straight(&self, range: &Range<u64>) -> bool {
        let policy = self.settings.policy;
        let inline = match policy.write {
            Dispatch::Inline => true,
            Dispatch::Adaptive => self.adaptive.is_empty(),
            Dispatch::Workers { .. } => false,
        };
        let whole = policy.max_write_size.is_none_or(|most| range.end - range.start <= u64::from(most));
        inline
            && whole
            && !self.settings.suspended
            && self.widen(range.clone()).1 == 0
            && !self.mapping.is_zoned()
            && self.order.is_empty()
            && self.writes.is_free(range)
    }

    /// Writes scratch memory as far as possible without blocking. Returns the offset that was
    /// reached, and the result; the piece at that offset is encrypted whole, and its tuples are
    /// made.
    pub(in super::super) fn write_now(
        &mut self,
        range: Range<u64>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> (u64, Result<()>) {
        let mut at = range.start;
        let arrived = self.now;
        while at < range.end {
            let Some(volume) = self.settings_versions.current() else { return (at, Err(no_key())) };
            let Some(piece) = find(volume, at, &range, !tags.is_empty()) else {
                return (at, Err(beyond()));
            };
            match piece.place {
                PieceKind::Stored => {}
                PieceKind::Zero => {
                    at = piece.end();
                    continue;
                }
                PieceKind::Error => return (at, Err(piece.error())),
            }
            let began = self.now;
            if let Err(refused) = piece.encrypt(volume, None, data, tags) {
                return (at, Err(refused.into()));
            }
            self.now = Instant::now();
            let encrypted = self.now;
            self.inbox.stats.crypto.record(nanos(encrypted.saturating_duration_since(began)), 1);
            self.inbox.stats.did(CryptoSite::Inline);
            match piece.write_now(&mut *self.channels[piece.device], data, tags) {
                Immediate::Done => at = piece.end(),
                Immediate::Blocked(_) => return (at, Ok(())),
                Immediate::Failed(e) => return (at, Err(self.lower(piece.device, e))),
            }
            let latency = self.tick().saturating_duration_since(encrypted);
            self.inbox.stats.lower.record(nanos(latency), 1);
        }
        self.inbox.stats.queued.record(0, 1);
        self.inbox.stats.total.record(nanos(self.now.saturating_duration_since(arrived)), 1);
        self.count(RequestClass::Write, data.len() as u64, true);
        (at, Ok(()))
    }

    /// Continues a write that would have blocked: the piece at `at` is encrypted already.
    pub(in super::super) fn write_rest(
        &mut self,
        tag: u64,
        range: Range<u64>,
        at: u64,
        (buffer, tags): (Buffer, Option<Buffer>),
        lock: LockState,
    ) {
        let piece =
            self.settings_versions.current().and_then(|volume| find(volume, at, &range, tags.is_some()));
        let slot = Slot::new(
            SlotOperation::Write { durable: false },
            range.clone(),
            None,
            RequestClass::Write,
            self.now,
        );
        let version = self.settings_versions.pin();
        let stage = SlotStage::Ready(None);
        let piece = piece.unwrap_or(Piece::NONE);
        let index = self.enter(Slot { tag, at, version, stage, piece, lock, tags, ..slot });
        // Nothing overlaps: `writes_straight` checked that.
        self.writes.enter(range, index);
        let step = self.write(index, buffer);
        self.went_on(index, step);
    }
}

/// Finds the piece at `at` of a request in the caller's memory, in a volume that may have tuples.
fn find(volume: &Volume, at: u64, range: &Range<u64>, is_tagged: bool) -> Option<Piece> {
    let piece = Piece::find(volume, at, range.end, range.start)?;
    Some(if is_tagged { piece.with_tags(volume) } else { piece })
}
