//! The crypto of a piece, on this thread or on a worker.

use std::time::Instant;

use underseal_device::Buffer;

use super::super::Queue;
use super::{StepOutcome, no_key};
use crate::piece::CryptoFailure;
use crate::slot::{SlotOperation, SlotStage};
use crate::stats::{CryptoSite, nanos};
use crate::workers::{CryptoWork, Task, TaskOutcome};
use crate::{Affinity, Dispatch, Error, ErrorKind, WriteOrder};

impl Queue {
    /// Starts a request or part after its admission.
    pub(super) fn dispatch(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.order == WriteOrder::Arrival && slot.op.changes() && slot.op != SlotOperation::Discard {
            self.order.arrived(index);
        }
        let moves = matches!(slot.op, SlotOperation::Read { .. } | SlotOperation::Write { .. });
        if slot.dispatch == Dispatch::Adaptive && moves {
            self.dispatch_adaptive(index);
        } else {
            self.run(index);
        }
    }

    /// Decrypts a piece that was read, by the policy.
    pub(super) fn decrypt(&mut self, index: u32, buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        match slot.dispatch {
            Dispatch::Inline => self.decrypt_here(index, buffer),
            Dispatch::Adaptive if self.adaptive.is_running(index) => self.decrypt_here(index, buffer),
            Dispatch::Adaptive => {
                slot.stage = SlotStage::Came(buffer);
                self.join_backlog(index);
                StepOutcome::Pending
            }
            Dispatch::Workers { affinity } => self.give(index, buffer, CryptoWork::Decrypt, affinity, false),
        }
    }

    pub(super) fn decrypt_here(&mut self, index: u32, mut buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        let Some(volume) = self.settings_versions.volume(slot.version) else {
            return self.fail(index, buffer, no_key());
        };
        let tags = slot.tags.as_deref().unwrap_or_default();
        let decrypted = slot.piece.decrypt(volume, slot.direct(), &mut buffer, tags);
        slot.stage = SlotStage::Ready(Some(buffer));
        self.crypto_over(index, CryptoSite::Inline);
        match decrypted {
            Ok(()) => self.advance(index),
            Err(refused) => StepOutcome::Failed(self.broken(true, refused)),
        }
    }

    /// Encrypts a piece, by the policy.
    pub(super) fn encrypt(&mut self, index: u32, buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        slot.since = self.now;
        match slot.dispatch {
            Dispatch::Inline | Dispatch::Adaptive => self.encrypt_here(index, buffer),
            Dispatch::Workers { affinity } => {
                // The worker writes the piece too, where no order of writes is required.
                let alone = slot.order == WriteOrder::AsReady && !slot.op.is_durable();
                let work = if alone { CryptoWork::EncryptAndWrite } else { CryptoWork::Encrypt };
                self.give(index, buffer, work, affinity, false)
            }
        }
    }

    fn encrypt_here(&mut self, index: u32, mut buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        let Some(volume) = self.settings_versions.volume(slot.version) else {
            return self.fail(index, buffer, no_key());
        };
        let tags = slot.tags.as_deref_mut().unwrap_or_default();
        if let Err(refused) = slot.piece.encrypt(volume, slot.shared.as_ref(), &mut buffer, tags) {
            return self.fail(index, buffer, refused.into());
        }
        let in_line = slot.order == WriteOrder::Arrival;
        self.crypto_over(index, CryptoSite::Inline);
        if in_line {
            if self.order.first() != Some(index) {
                self.slots.get(index).stage = SlotStage::Encrypted(buffer);
                return StepOutcome::Pending;
            }
            self.leave_line(index);
        }
        self.write(index, buffer)
    }

    /// Submits a piece that a worker has encrypted, now or in [`Queue::write_in_order`].
    pub(super) fn encrypted(&mut self, index: u32, buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        match slot.order {
            WriteOrder::AsReady => return self.write(index, buffer),
            WriteOrder::Sorted => self.order.sort(&slot.piece, index),
            WriteOrder::Arrival => {}
        }
        slot.stage = SlotStage::Encrypted(buffer);
        StepOutcome::Pending
    }

    /// Hands a piece to a worker.
    pub(super) fn give(
        &mut self,
        index: u32,
        buffer: Buffer,
        work: CryptoWork,
        affinity: Affinity,
        is_surplus: bool,
    ) -> StepOutcome {
        let slot = self.slots.get(index);
        let Some(volume) = self.settings_versions.volume(slot.version) else {
            return self.fail(index, buffer, no_key());
        };
        let given = Instant::now();
        (slot.since, slot.stage) = (given, SlotStage::Worker);
        let task = Task {
            slot: index,
            work,
            is_surplus,
            follows: self.adaptive.away() > 0,
            volume: volume.clone(),
            piece: slot.piece,
            buffer,
            shared: slot.direct().cloned(),
            tags: slot.tags.take(),
            home: self.inbox.clone(),
            given,
            started: given,
            outcome: TaskOutcome::Untouched,
        };
        match self.mapping.workers().give(task, affinity) {
            Ok(()) => {
                if is_surplus {
                    self.adaptive.gave();
                }
                StepOutcome::Pending
            }
            Err(mut task) => {
                // The system has no threads for workers: this thread does the task.
                task.run(&mut self.channels);
                self.task_result(task)
            }
        }
    }

    /// Takes a finished task from a worker.
    pub(in super::super) fn task_over(&mut self, task: Task) {
        let index = task.slot;
        if task.is_surplus {
            let now = self.tick();
            self.adaptive.surplus_over(&task, now);
        }
        let step = self.task_result(task);
        self.went_on(index, step);
    }

    pub(super) fn task_result(&mut self, task: Task) -> StepOutcome {
        let Task { slot: index, work, piece, buffer, tags, outcome, .. } = task;
        self.slots.get(index).tags = tags;
        self.tick();
        self.crypto_over(index, CryptoSite::Worker);
        match (outcome, work) {
            (TaskOutcome::Done, CryptoWork::Encrypt) => self.encrypted(index, buffer),
            (TaskOutcome::Done, _) => {
                self.slots.get(index).stage = SlotStage::Ready(Some(buffer));
                self.advance(index)
            }
            (TaskOutcome::Blocked(done), _) => self.start_rest(index, buffer, done),
            (TaskOutcome::Failed(e), _) => {
                let error = match work {
                    CryptoWork::ReadAndDecrypt => self.unread(&piece, e),
                    _ => self.lower(piece.device, e),
                };
                self.fail(index, buffer, error)
            }
            (TaskOutcome::Broken(refused), _) => {
                let error =
                    self.broken(matches!(work, CryptoWork::Decrypt | CryptoWork::ReadAndDecrypt), refused);
                self.fail(index, buffer, error)
            }
            (TaskOutcome::Untouched | TaskOutcome::Died, _) => {
                let context = "a worker panicked in the request; see the log";
                self.fail(index, buffer, Error::new(ErrorKind::Worker, context))
            }
        }
    }

    /// The error of a sector that the cipher refuses; in a read it is counted.
    pub(super) fn broken(&self, was_read: bool, refused: CryptoFailure) -> Error {
        if let (true, CryptoFailure::Refused(at)) = (was_read, refused) {
            self.inbox.stats.mismatches.add(at);
        }
        refused.into()
    }

    /// Counts a piece whose crypto is done.
    fn crypto_over(&mut self, index: u32, who: CryptoSite) {
        let now = self.tick();
        let slot = self.slots.get(index);
        let latency = now.saturating_duration_since(slot.since);
        slot.since = now;
        self.inbox.stats.crypto.record(nanos(latency), 1);
        self.inbox.stats.did(who);
    }
}
