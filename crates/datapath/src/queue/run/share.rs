//! The adaptive policy's backlog: pieces for this thread, and pieces for workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Queue;
use super::super::adaptive::{BacklogEntry, BacklogPlan, Outlook};
use crate::piece::{Piece, PieceKind};
use crate::slot::{SlotOperation, SlotStage};
use crate::stats::{CryptoSite, nanos};
use crate::workers::{CryptoWork, Task};
use crate::{Affinity, WriteOrder};

/// The time for which this thread waits for a worker before it sleeps, since waking up takes as
/// long.
const PATIENCE: Duration = Duration::from_micros(50);

impl Queue {
    /// Starts a read or write: at once, or when its turn in the backlog comes.
    pub(super) fn dispatch_adaptive(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if self.adaptive.is_trifle(slot.class, slot.end - slot.at) {
            let above = self.adaptive.at(Some(index));
            self.run(index);
            self.adaptive.at(above);
        } else if slot.op.reads() && self.adaptive.reads_block() {
            self.run(index);
        } else {
            self.join_backlog(index);
        }
    }

    /// Adds a slot to the backlog.
    pub(super) fn join_backlog(&mut self, index: u32) {
        let slot = self.slots.get(index);
        slot.since = self.now;
        let begins =
            matches!(slot.stage, SlotStage::Ready(_)) && slot.at == slot.start && slot.part_of.is_none();
        let divides = begins
            && matches!(slot.op, SlotOperation::Read { .. } | SlotOperation::Write { .. })
            // A write with a place in the order of arrival is not divided.
            && !(slot.order == WriteOrder::Arrival && slot.op.changes());
        if self.adaptive.join(self.now, index, slot.class, slot.end - slot.at, divides) {
            self.adaptive.show(&self.inbox.stats);
        }
    }

    /// Does the next piece of the backlog, and hands the surplus over. False when the backlog is
    /// empty.
    pub(in super::super) fn work_on_backlog(&mut self) -> bool {
        if self.adaptive.is_empty() {
            return false;
        }
        if self.adaptive.away() > 0 && self.inbox.has_messages() {
            // A worker that has finished can take more.
            self.read_letters();
        }
        loop {
            let workers = self.mapping.workers();
            let outlook = Outlook {
                now: self.now,
                moved: self.moved,
                spare_parts: self.spare_parts > 1,
                has_room: |away| workers.has_room(away),
            };
            match self.adaptive.plan(&outlook) {
                Some(BacklogPlan::Divide(slot, each)) => self.divide(slot.index, each),
                Some(BacklogPlan::Give(slot)) if self.give_surplus(slot.index) => {}
                Some(BacklogPlan::Give(slot) | BacklogPlan::Do(slot)) => {
                    self.work_on(slot);
                    break;
                }
                // Workers have all pieces.
                None => break,
            }
        }
        self.settle();
        true
    }

    /// Does and measures the next piece of a slot from the backlog.
    fn work_on(&mut self, waits: BacklogEntry) {
        let BacklogEntry { index, class, len, .. } = waits;
        let measured = self.adaptive.is_measured(&waits);
        let began = if measured { self.tick() } else { self.now };
        self.adaptive.at(Some(index));
        let moved = self.moved;
        let slot = self.slots.get(index);
        slot.since = began;
        let came = if let SlotStage::Came(_) = slot.stage { slot.stage.take() } else { None };
        if let Some(buffer) = came {
            let step = self.decrypt_here(index, buffer);
            self.went_on(index, step);
        } else {
            self.run(index);
        }
        self.adaptive.at(None);
        self.adaptive.rests(self.now);
        if measured && self.moved - moved == len {
            self.adaptive.took(class, len, nanos(self.now.saturating_duration_since(began)));
        }
        self.adaptive.show(&self.inbox.stats);
    }

    /// Gives a slot's next piece to a worker. False when the piece is not one of ciphertext, or has
    /// no memory.
    fn give_surplus(&mut self, index: u32) -> bool {
        let slot = self.slots.get(index);
        let came = matches!(slot.stage, SlotStage::Came(_));
        if !came {
            let Some(volume) = self.settings_versions.volume(slot.version) else { return false };
            let Some(piece) = Piece::next_of(slot, volume) else { return false };
            let piece = if slot.is_cached() { piece.with_rest(slot, volume) } else { piece };
            if piece.place != PieceKind::Stored {
                return false;
            }
            slot.piece = piece;
        }
        let work = match (slot.op.reads(), came) {
            (true, true) => CryptoWork::Decrypt,
            (true, false) => CryptoWork::ReadAndDecrypt,
            _ if slot.order == WriteOrder::AsReady && !slot.op.is_durable() => CryptoWork::EncryptAndWrite,
            _ => CryptoWork::Encrypt,
        };
        let Some(buffer) = slot.stage.take() else { return false };
        // Without a worker this thread has begun the piece.
        let step = self.give(index, buffer, work, Affinity::Any, true);
        self.went_on(index, step);
        true
    }

    /// Takes back a task that no worker has begun, and waits a little for a busy worker, before
    /// this thread sleeps. True when there is new work.
    pub(in super::super) fn take_surplus_back(&mut self) -> bool {
        if self.adaptive.away() == 0 {
            return false;
        }
        let home = &self.inbox;
        let mine = |task: &Task| task.is_surplus && Arc::ptr_eq(&task.home, home);
        if let Some(mut task) = self.mapping.workers().take_back(mine) {
            self.adaptive.took_back(&task);
            self.inbox.stats.did(CryptoSite::TakenBack);
            task.run(&mut self.channels);
            let index = task.slot;
            let step = self.task_result(task);
            self.went_on(index, step);
            return true;
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.inbox.has_messages() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
