//! Who does the crypto of a piece.

use std::time::Instant;

use underseal_device::Buffer;

use super::super::Queue;
use super::{Step, no_key};
use crate::piece::Refused;
use crate::slot::{Op, Stage};
use crate::stats::{Did, nanos};
use crate::workers::{Outcome, Task, Work};
use crate::{Affinity, Dispatch, Error, ErrorKind, WriteOrder};

impl Queue {
    /// Starts a request or part whose turn has come.
    pub(super) fn dispatch(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.order == WriteOrder::Arrival && slot.op.changes() && slot.op != Op::Discard {
            self.order.arrived(index);
        }
        let moves = matches!(slot.op, Op::Read { .. } | Op::Write { .. });
        if slot.dispatch == Dispatch::Adaptive && moves {
            self.dispatch_adaptive(index);
        } else {
            self.run(index);
        }
    }

    /// The bytes of a piece are there.
    pub(super) fn decrypt(&mut self, index: u32, buffer: Buffer) -> Step {
        let slot = self.slots.get(index);
        match slot.dispatch {
            Dispatch::Inline => self.decrypt_here(index, buffer),
            Dispatch::Adaptive if self.adaptive.is_running(index) => self.decrypt_here(index, buffer),
            Dispatch::Adaptive => {
                slot.stage = Stage::Came(buffer);
                self.join_backlog(index);
                Step::Pending
            }
            Dispatch::Workers { affinity } => self.give(index, buffer, Work::Decrypt, affinity, false),
            // Engines know no tuples.
            Dispatch::Engine if slot.piece.tags > 0 => self.decrypt_here(index, buffer),
            Dispatch::Engine => self.start_jobs(index, buffer),
        }
    }

    pub(super) fn decrypt_here(&mut self, index: u32, mut buffer: Buffer) -> Step {
        let slot = self.slots.get(index);
        let Some(volume) = self.epochs.volume(slot.epoch) else { return self.fail(index, buffer, no_key()) };
        let tags = slot.tags.as_deref().unwrap_or_default();
        let decrypted = slot.piece.decrypt(volume, &mut buffer, tags);
        slot.stage = Stage::Ready(Some(buffer));
        self.crypto_over(index, Did::Inline);
        match decrypted {
            Ok(()) => self.advance(index),
            Err(refused) => Step::Failed(self.broken(true, refused)),
        }
    }

    /// The bytes of a piece are to be written.
    pub(super) fn encrypt(&mut self, index: u32, buffer: Buffer) -> Step {
        let slot = self.slots.get(index);
        slot.since = self.now;
        match slot.dispatch {
            Dispatch::Inline | Dispatch::Adaptive => self.encrypt_here(index, buffer),
            Dispatch::Workers { affinity } => {
                // Who has encrypted it writes it, where nobody else has a say in the order.
                let alone = slot.order == WriteOrder::AsReady && !slot.op.is_durable();
                let work = if alone { Work::EncryptAndWrite } else { Work::Encrypt };
                self.give(index, buffer, work, affinity, false)
            }
            Dispatch::Engine if slot.piece.tags > 0 => self.encrypt_here(index, buffer),
            Dispatch::Engine => self.start_jobs(index, buffer),
        }
    }

    fn encrypt_here(&mut self, index: u32, mut buffer: Buffer) -> Step {
        let slot = self.slots.get(index);
        let Some(volume) = self.epochs.volume(slot.epoch) else { return self.fail(index, buffer, no_key()) };
        let tags = slot.tags.as_deref_mut().unwrap_or_default();
        if let Err(refused) = slot.piece.encrypt(volume, &mut buffer, tags) {
            return self.fail(index, buffer, refused.into());
        }
        let in_line = slot.order == WriteOrder::Arrival;
        self.crypto_over(index, Did::Inline);
        if in_line {
            if self.order.first() != Some(index) {
                self.slots.get(index).stage = Stage::Encrypted(buffer);
                return Step::Pending;
            }
            self.leave_line(index);
        }
        self.write(index, buffer)
    }

    /// Others have encrypted a piece: it goes down now, or in [`Queue::write_in_order`].
    pub(super) fn encrypted(&mut self, index: u32, buffer: Buffer) -> Step {
        let slot = self.slots.get(index);
        match slot.order {
            WriteOrder::AsReady => return self.write(index, buffer),
            WriteOrder::Sorted => self.order.sort(&slot.piece, index),
            WriteOrder::Arrival => {}
        }
        slot.stage = Stage::Encrypted(buffer);
        Step::Pending
    }

    /// Hands a piece to a worker.
    pub(super) fn give(
        &mut self,
        index: u32,
        buffer: Buffer,
        work: Work,
        affinity: Affinity,
        is_surplus: bool,
    ) -> Step {
        let slot = self.slots.get(index);
        let Some(volume) = self.epochs.volume(slot.epoch) else { return self.fail(index, buffer, no_key()) };
        let given = Instant::now();
        (slot.since, slot.stage) = (given, Stage::Worker);
        let task = Task {
            slot: index,
            work,
            is_surplus,
            follows: self.adaptive.away() > 0,
            volume: volume.clone(),
            piece: slot.piece,
            buffer,
            tags: slot.tags.take(),
            home: self.post.clone(),
            given,
            started: given,
            outcome: Outcome::Untouched,
        };
        match self.mapping.workers().give(task, affinity) {
            Ok(()) => {
                if is_surplus {
                    self.adaptive.gave();
                }
                Step::Pending
            }
            Err(mut task) => {
                // No worker can be had: the volume goes on without.
                task.run(&mut self.channels);
                self.task_result(task)
            }
        }
    }

    /// A worker is done with a piece.
    pub(in super::super) fn task_over(&mut self, task: Task) {
        let index = task.slot;
        if task.is_surplus {
            let now = self.tick();
            self.adaptive.surplus_over(&task, now);
        }
        let step = self.task_result(task);
        self.went_on(index, step);
    }

    pub(super) fn task_result(&mut self, task: Task) -> Step {
        let Task { slot: index, work, piece, buffer, tags, outcome, .. } = task;
        self.slots.get(index).tags = tags;
        self.tick();
        self.crypto_over(index, Did::Worker);
        match (outcome, work) {
            (Outcome::Done, Work::Encrypt) => self.encrypted(index, buffer),
            (Outcome::Done, _) => {
                self.slots.get(index).stage = Stage::Ready(Some(buffer));
                self.advance(index)
            }
            (Outcome::Blocked(done), _) => self.start_rest(index, buffer, done),
            (Outcome::Failed(e), _) => {
                let error = match work {
                    Work::ReadAndDecrypt => self.unread(&piece, e),
                    _ => self.lower(piece.device, e),
                };
                self.fail(index, buffer, error)
            }
            (Outcome::Broken(refused), _) => {
                let error = self.broken(matches!(work, Work::Decrypt | Work::ReadAndDecrypt), refused);
                self.fail(index, buffer, error)
            }
            (Outcome::Untouched | Outcome::Died, _) => {
                let context = "a worker failed amid the request; the log tells more";
                self.fail(index, buffer, Error::new(ErrorKind::Worker, context))
            }
        }
    }

    /// The cipher refuses a sector: one that was read is counted.
    pub(super) fn broken(&self, was_read: bool, refused: Refused) -> Error {
        if was_read {
            self.post.stats.mismatches.add(refused.0);
        }
        refused.into()
    }

    /// The crypto of a piece is done.
    fn crypto_over(&mut self, index: u32, who: Did) {
        let now = self.tick();
        let slot = self.slots.get(index);
        let latency = now.saturating_duration_since(slot.since);
        slot.since = now;
        self.post.stats.crypto.record(nanos(latency), 1);
        self.post.stats.did(who);
    }
}
