//! A slot moves on: piece by piece through the lower device, until it is over.

use underseal_device::{Buffer, Finished, Io, Now, Started};

use super::piece::{Piece, Place};
use super::{Family, Queue, Slot};
use crate::slot::{Job, Kind, Lock};
use crate::stats::{Did, nanos};
use crate::{Completion, Dispatch, Error, ErrorKind, Result, WriteOrder};

/// What a step came to.
pub(super) enum Step {
    /// The piece is done.
    Done,
    /// Somebody else has it, or it waits for its turn.
    Pending,
    Failed(Error),
}

impl Queue {
    /// Moves a request on until it is over or has to wait.
    pub(super) fn run(&mut self, index: u32) {
        loop {
            let devices = self.channels.len();
            let slot = self.slots.get(index);
            match slot.job {
                Job::Flush { device } if device == devices => return self.complete(index, Ok(())),
                Job::Flush { .. } => {}
                _ if slot.at < slot.end => {}
                Job::Modify { reads: true, .. } => {
                    self.overlay(index);
                    continue;
                }
                _ if slot.then_flush => {
                    slot.job = Job::Flush { device: 0 };
                    continue;
                }
                _ => return self.complete(index, Ok(())),
            }
            match self.step(index) {
                Step::Done => {}
                Step::Pending => return,
                Step::Failed(e) => return self.complete(index, Err(e)),
            }
        }
    }

    /// Does the next piece, or hands it to somebody.
    fn step(&mut self, index: u32) -> Step {
        let slot = self.slots.get(index);
        if let Job::Flush { device } = slot.job {
            return self.start(index, device, Io::Flush);
        }
        let (Some(volume), job) = (&self.volume, slot.job) else { return no_key() };
        let Some(piece) = Piece::of(volume, slot) else { return beyond() };
        let device = match piece.place(volume) {
            Place::On(device) => device,
            Place::Zero => {
                if let (true, Some(buffer)) = (job.reads(), &mut slot.buffer) {
                    buffer[piece.range.clone()].fill(0);
                }
                self.advance(index, piece.len);
                return Step::Done;
            }
            Place::Error => return Step::Failed(piece.error()),
        };
        let (offset, len) = (piece.lower(volume), piece.len);
        let zeroes = matches!(job, Job::WriteZeros | Job::ZeroBelow { .. });
        if zeroes && slot.order == WriteOrder::Arrival && !self.is_its_turn(index) {
            return Step::Pending;
        }
        let Some(volume) = &self.volume else { return no_key() };
        let slot = self.slots.get(index);
        match job {
            _ if job.reads() => self.read(index, device, &piece),
            _ if job.writes_data() => self.encrypt(index, &piece),
            Job::WriteZeros => {
                let Some(mut buffer) = slot.buffer.take() else { return lost_memory() };
                let bytes = &mut buffer[piece.range.clone()];
                bytes.fill(0);
                piece.encrypt(volume, bytes);
                self.write(index, device, buffer, &piece, false)
            }
            Job::ZeroBelow { punch, .. } => self.start(index, device, Io::Zero { offset, len, punch }),
            Job::Discard if !self.mapping.discards() => {
                self.advance(index, len);
                Step::Done
            }
            Job::Discard => self.start(index, device, Io::Discard { offset, len }),
            _ => self.start(index, device, Io::Prefetch { offset, len }),
        }
    }

    fn read(&mut self, index: u32, device: usize, piece: &Piece) -> Step {
        let Some(volume) = &self.volume else { return no_key() };
        let slot = self.slots.get(index);
        let Some(mut buffer) = slot.buffer.take() else { return lost_memory() };
        slot.since = self.now;
        let (offset, bytes) = (piece.lower(volume), &mut buffer[piece.range.clone()]);
        let now = self.channels[device].read_now(offset, bytes);
        self.adaptive.saw_read(matches!(now, Now::Blocked(_)));
        match now {
            Now::Done => {
                let slot = self.slots.get(index);
                slot.buffer = Some(buffer);
                self.lower_over(index);
                self.decrypt(index, piece)
            }
            Now::Blocked(done) => {
                let range = piece.range.start + done..piece.range.end;
                self.start(index, device, Io::Read { offset: offset + done as u64, buffer, range })
            }
            Now::Failed(e) => {
                self.slots.get(index).buffer = Some(buffer);
                Step::Failed(self.lower(device, e))
            }
        }
    }

    /// Writes the next piece, whose bytes are encrypted.
    pub(super) fn write_encrypted(&mut self, index: u32) -> Step {
        let slot = self.slots.get(index);
        slot.is_due = false;
        let durable = slot.job.is_durable();
        match (&self.volume, slot.buffer.take()) {
            (Some(volume), Some(buffer)) => match Piece::of(volume, slot) {
                Some(piece) => {
                    // Only what lies on a device is encrypted.
                    let device = piece.device(volume);
                    self.write(index, device, buffer, &piece, durable)
                }
                None => lost_memory(),
            },
            (None, _) => no_key(),
            (_, None) => lost_memory(),
        }
    }

    /// Writes a piece whose bytes are encrypted.
    pub(super) fn write(
        &mut self,
        index: u32,
        device: usize,
        buffer: Buffer,
        piece: &Piece,
        durable: bool,
    ) -> Step {
        let Some(volume) = &self.volume else { return no_key() };
        let lower = piece.lower(volume);
        let mut range = piece.range.clone();
        self.slots.get(index).since = self.now;
        if !durable {
            match self.channels[device].write_now(lower, &buffer[range.clone()]) {
                Now::Done => {
                    self.slots.get(index).buffer = Some(buffer);
                    self.lower_over(index);
                    self.advance(index, piece.len);
                    return Step::Done;
                }
                Now::Blocked(done) => range.start += done,
                Now::Failed(e) => {
                    self.slots.get(index).buffer = Some(buffer);
                    return Step::Failed(self.lower(device, e));
                }
            }
        }
        let offset = lower + (range.start - piece.range.start) as u64;
        self.start(index, device, Io::Write { offset, buffer, range, durable })
    }

    /// True when a write may be encrypted and written in the caller's memory, here and now: it need not wait for anything.
    pub(super) fn is_straight(&self, offset: u64, len: usize) -> bool {
        let policy = self.settings.policy;
        let inline = match policy.write {
            Dispatch::Inline => true,
            Dispatch::Adaptive => self.adaptive.is_empty(),
            Dispatch::Workers { .. } | Dispatch::Engine => false,
        };
        let whole = policy.max_write_size.is_none_or(|most| len as u64 <= u64::from(most));
        let range = offset..offset + len as u64;
        inline
            && whole
            && self.volume.is_some()
            && !self.settings.suspended
            && self.widen(range.clone()).1 == 0
            && !self.mapping.is_zoned()
            && self.order.is_empty()
            && self.writes.is_free(&range)
    }

    /// Writes scratch memory as far as that goes at once. What was reached, and how it ended; the piece at which it
    /// stopped is encrypted whole.
    pub(super) fn write_now(&mut self, offset: u64, data: &mut [u8]) -> (u64, Result<()>) {
        let end = offset + data.len() as u64;
        let mut at = offset;
        let arrived = self.now;
        while let (true, Some(volume)) = (at < end, &self.volume) {
            let Some(piece) = Piece::at(volume, at, end, offset) else { break };
            let device = match piece.place(volume) {
                Place::On(device) => device,
                Place::Zero => {
                    at += piece.len;
                    continue;
                }
                Place::Error => return (at, Err(piece.error())),
            };
            let bytes = &mut data[piece.range.clone()];
            let began = self.now;
            piece.encrypt(volume, bytes);
            let lower = piece.lower(volume);
            self.now = std::time::Instant::now();
            let encrypted = self.now;
            self.post.stats.crypto.record(nanos(encrypted.saturating_duration_since(began)), 1);
            self.post.stats.did(Did::Inline);
            match self.channels[device].write_now(lower, bytes) {
                Now::Done => at += piece.len,
                Now::Blocked(_) => break,
                Now::Failed(e) => return (at, Err(self.lower(device, e))),
            }
            let latency = self.tick().saturating_duration_since(encrypted);
            self.post.stats.lower.record(nanos(latency), 1);
        }
        if at == end {
            self.post.stats.queued.record(0, 1);
            self.post.stats.total.record(nanos(self.now.saturating_duration_since(arrived)), 1);
            self.count(Kind::Write, data.len() as u64, true);
        }
        (at, Ok(()))
    }

    /// Goes on with a write that did not go down at once: the piece at `at` is encrypted already.
    pub(super) fn write_rest(&mut self, tag: u64, offset: u64, at: u64, buffer: Buffer, lock: Lock) {
        let range = offset..offset + buffer.len() as u64;
        let write = Job::Write { durable: false };
        let slot = Slot::new(write, range.clone(), Some(buffer), Kind::Write, self.now);
        let index = self.enter(Slot { tag, at, is_due: true, lock, ..slot });
        // Nothing overlaps: it was asked before.
        self.writes.enter(range, index, false);
        let step = self.write_encrypted(index);
        self.went_on(index, step);
    }

    fn start(&mut self, index: u32, device: usize, io: Io) -> Step {
        self.slots.get(index).device = device;
        let channel = &mut self.channels[device];
        match self.ring.channel(device, |ring| channel.start(ring, index, io)) {
            Started::Pending => Step::Pending,
            Started::Finished(done) => self.piece_over(done),
        }
    }

    /// Starts what is left of a piece of which a worker has done so many bytes.
    pub(super) fn start_rest(&mut self, index: u32, done: usize) -> Step {
        let slot = self.slots.get(index);
        let Some(volume) = &self.volume else { return no_key() };
        let Some(piece) = Piece::of(volume, slot) else { return lost_memory() };
        let (job, Some(buffer)) = (slot.job, slot.buffer.take()) else { return lost_memory() };
        let offset = piece.lower(volume) + done as u64;
        let range = piece.range.start + done..piece.range.end;
        let device = piece.device(volume);
        let io = if job.reads() {
            Io::Read { offset, buffer, range }
        } else {
            Io::Write { offset, buffer, range, durable: job.is_durable() }
        };
        self.start(index, device, io)
    }

    /// A request came back from the lower device.
    pub(super) fn finished(&mut self, done: Finished) {
        let index = done.slot;
        let step = self.piece_over(done);
        self.went_on(index, step);
    }

    /// A step ended that was taken outside of [`Queue::run`].
    pub(super) fn went_on(&mut self, index: u32, step: Step) {
        match step {
            Step::Done => self.run(index),
            Step::Pending => {}
            Step::Failed(e) => self.complete(index, Err(e)),
        }
    }

    fn piece_over(&mut self, done: Finished) -> Step {
        let index = done.slot;
        let slot = self.slots.get(index);
        if done.buffer.is_some() {
            slot.buffer = done.buffer;
        }
        if let (Err(e), Job::ZeroBelow { fast, .. }) = (&done.result, slot.job)
            && unsupported(e)
        {
            if fast {
                let context = "the lower device cannot zero without writing";
                return Step::Failed(Error::new(ErrorKind::Unsupported, context));
            }
            return self.write_zeros_instead(index);
        }
        if let Err(e) = done.result {
            let device = slot.device;
            return Step::Failed(self.lower(device, e));
        }
        if let Job::Flush { device } = &mut slot.job {
            *device += 1;
            return Step::Done;
        }
        self.lower_over(index);
        let Some(volume) = &self.volume else { return no_key() };
        let slot = self.slots.get(index);
        let Some(piece) = Piece::of(volume, slot) else { return beyond() };
        if slot.job.reads() {
            return self.decrypt(index, &piece);
        }
        self.advance(index, piece.len);
        Step::Done
    }

    fn write_zeros_instead(&mut self, index: u32) -> Step {
        let slot = self.slots.get(index);
        let len = slot.end - slot.at;
        match self.zeros(len) {
            Some(buffer) => {
                let slot = self.slots.get(index);
                (slot.job, slot.buffer) = (Job::WriteZeros, Some(buffer));
                Step::Done
            }
            None => Step::Failed(Error::new(ErrorKind::NoSpace, "no memory to write zeros from")),
        }
    }

    /// The lower device is done with a piece.
    fn lower_over(&mut self, index: u32) {
        let now = self.tick();
        let slot = self.slots.get(index);
        let latency = now.saturating_duration_since(slot.since);
        slot.since = now;
        self.post.stats.lower.record(nanos(latency), 1);
    }

    pub(super) fn lower(&self, device: usize, e: underseal_device::Error) -> Error {
        Error::lower(self.mapping.devices()[device].name(), e)
    }

    pub(super) fn advance(&mut self, index: u32, len: u64) {
        self.slots.get(index).at += len;
        self.moved += len;
    }

    /// A request, or a part of one, is over.
    pub(super) fn complete(&mut self, index: u32, result: Result<()>) {
        if self.slots.get(index).order == WriteOrder::Arrival {
            self.order.forget(index);
        }
        if let Family::Part { parent, .. } = self.slots.get(index).family {
            return self.part_over(parent, result);
        }
        self.unlock(index);
        let slot = self.slots.get(index);
        let changes = slot.kind != Kind::Read && slot.kind != Kind::Flush;
        let Slot { tag, job, mut buffer, spare, start, end, kind, arrived, .. } = self.slots.take(index);
        if changes {
            self.writes.leave(&index, |next| self.runnable.push_back(*next));
        }
        spare.into_iter().flatten().for_each(|scratch| self.arena.free(scratch));
        let bytes = match (job, &mut buffer) {
            (Job::Read { view: Some((from, len)) }, Some(buffer)) => {
                buffer.copy_within(from..from + len, 0);
                buffer.truncate(len);
                len as u64
            }
            _ => end - start,
        };
        if kind == Kind::Other
            && let Some(zeros) = buffer.take()
        {
            self.arena.free(zeros);
        }
        self.requests -= 1;
        self.count(kind, bytes, result.is_ok());
        let latency = self.now.saturating_duration_since(arrived);
        self.post.stats.total.record(nanos(latency), 1);
        self.post.stats.in_flight.store(self.requests.into(), std::sync::atomic::Ordering::Relaxed);
        self.ready.push_back(Completion { tag, result, buffer });
    }
}

fn beyond() -> Step {
    Step::Failed(Error::new(ErrorKind::OutOfRange, "beyond the volume's end"))
}

fn unsupported(e: &underseal_device::Error) -> bool {
    const EOPNOTSUPP: i32 = 95;
    e.errno() == Some(EOPNOTSUPP)
}

pub(super) fn lost_memory() -> Step {
    Step::Failed(Error::new(ErrorKind::Lower, "the request's memory did not come back from the lower device"))
}

pub(super) fn no_key() -> Step {
    Step::Failed(Error::new(ErrorKind::NoKey, "the volume's key is wiped"))
}
