//! Who does the crypto of a piece.

use std::time::Instant;

use super::piece::Piece;
use super::run::{Step, lost_memory, no_key};
use super::{Job, Queue};
use crate::stats::{Did, nanos};
use crate::workers::{Outcome, Task, Work};
use crate::{Affinity, Dispatch, Error, ErrorKind, WriteOrder};

impl Queue {
    /// Starts a request or part whose turn has come.
    pub(super) fn dispatch(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.order == WriteOrder::Arrival && slot.job.changes() && slot.job != Job::Discard {
            self.order.arrived(index);
        }
        let slot = self.slots.get(index);
        let moves = matches!(slot.job, Job::Read { .. } | Job::Write { .. });
        if slot.dispatch == Dispatch::Adaptive && moves {
            self.dispatch_adaptive(index);
        } else {
            self.run(index);
        }
    }

    /// The bytes of a piece are there.
    pub(super) fn decrypt(&mut self, index: u32, piece: &Piece) -> Step {
        match self.slots.get(index).dispatch {
            Dispatch::Inline => self.decrypt_here(index, piece),
            Dispatch::Adaptive if self.adaptive.is_running(index) => self.decrypt_here(index, piece),
            Dispatch::Adaptive => {
                self.slots.get(index).is_due = true;
                self.join_backlog(index);
                Step::Pending
            }
            Dispatch::Workers { affinity } => self.give(index, piece, Work::Decrypt, affinity, false),
            Dispatch::Engine => self.start_jobs(index, piece),
        }
    }

    pub(super) fn decrypt_here(&mut self, index: u32, piece: &Piece) -> Step {
        let Some(volume) = &self.volume else { return no_key() };
        let Some(buffer) = &mut self.slots.get(index).buffer else { return lost_memory() };
        piece.decrypt(volume, &mut buffer[piece.range.clone()]);
        self.crypto_over(index, Did::Inline);
        self.advance(index, piece.len);
        Step::Done
    }

    /// The bytes of a piece are to be written.
    pub(super) fn encrypt(&mut self, index: u32, piece: &Piece) -> Step {
        let slot = self.slots.get(index);
        slot.since = self.now;
        match slot.dispatch {
            Dispatch::Inline | Dispatch::Adaptive => self.encrypt_here(index, piece),
            Dispatch::Workers { affinity } => {
                // Who has encrypted it writes it, where nobody else has a say in the order.
                let alone = slot.order == WriteOrder::AsReady && !slot.job.is_durable();
                let work = if alone { Work::EncryptAndWrite } else { Work::Encrypt };
                self.give(index, piece, work, affinity, false)
            }
            Dispatch::Engine => self.start_jobs(index, piece),
        }
    }

    fn encrypt_here(&mut self, index: u32, piece: &Piece) -> Step {
        let Some(volume) = &self.volume else { return no_key() };
        let slot = self.slots.get(index);
        let Some(mut buffer) = slot.buffer.take() else { return lost_memory() };
        piece.encrypt(volume, &mut buffer[piece.range.clone()]);
        let device = piece.device(volume);
        let (durable, in_line) = (slot.job.is_durable(), slot.order == WriteOrder::Arrival);
        self.crypto_over(index, Did::Inline);
        if in_line {
            if !self.is_its_turn(index) {
                self.slots.get(index).buffer = Some(buffer);
                return Step::Pending;
            }
            self.leave_line(index);
        }
        self.write(index, device, buffer, piece, durable)
    }

    /// Hands a piece to a worker.
    pub(super) fn give(
        &mut self,
        index: u32,
        piece: &Piece,
        work: Work,
        affinity: Affinity,
        is_surplus: bool,
    ) -> Step {
        let Some(volume) = self.volume.clone() else { return no_key() };
        let slot = self.slots.get(index);
        let Some(buffer) = slot.buffer.take() else { return lost_memory() };
        let given = Instant::now();
        slot.since = given;
        let task = Task {
            slot: index,
            work,
            is_surplus,
            follows: self.adaptive.has_given(),
            volume,
            segment: piece.segment,
            at: piece.at,
            buffer,
            range: piece.range.clone(),
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
    pub(super) fn task_over(&mut self, task: Task) {
        let index = task.slot;
        if task.is_surplus {
            self.adaptive.surplus_over(&task);
        }
        let step = self.task_result(task);
        self.went_on(index, step);
    }

    pub(super) fn task_result(&mut self, task: Task) -> Step {
        let Task { slot: index, work, volume, segment, buffer, range, outcome, .. } = task;
        self.slots.get(index).buffer = Some(buffer);
        self.tick();
        self.crypto_over(index, Did::Worker);
        match (outcome, work) {
            (Outcome::Done, Work::Encrypt) => self.encrypted(index),
            (Outcome::Done, _) => {
                self.slots.get(index).is_due = false;
                self.advance(index, range.len() as u64);
                Step::Done
            }
            (Outcome::Blocked(done), _) => self.start_rest(index, done),
            (Outcome::Failed(e), _) => {
                let device = volume.segments()[segment].as_stored().map_or(0, |stored| stored.device);
                Step::Failed(self.lower(device, e))
            }
            (Outcome::Untouched | Outcome::Died, _) => {
                let context = "a worker failed amid the request; the log tells more";
                Step::Failed(Error::new(ErrorKind::Worker, context))
            }
        }
    }

    /// The crypto of a piece is done.
    pub(super) fn crypto_over(&mut self, index: u32, who: Did) {
        let now = self.tick();
        let slot = self.slots.get(index);
        let latency = now.saturating_duration_since(slot.since);
        slot.since = now;
        self.post.stats.crypto.record(nanos(latency), 1);
        self.post.stats.did(who);
    }
}
