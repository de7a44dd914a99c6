//! Moves a slot on: piece by piece through the lower device, until it is over.

mod crypt;
mod parts;
mod share;
mod straight;

use underseal_device::{Arena, Buffer, Finished, Immediate, Io, Started};

use super::abandon::abandoned;
use super::{Full, Queue};
use crate::piece::{CryptoFailure, Piece, PieceKind, ZEROS};
use crate::slot::{RequestClass, Slot, SlotOperation, SlotStage};
use crate::stats::nanos;
use crate::{Completion, Error, ErrorKind, Result, WriteOrder};

/// The result of a step.
pub(super) enum StepOutcome {
    /// The piece is done.
    Done,
    /// Another thread or the lower device has the piece, or it waits for its turn.
    Pending,
    Failed(Error),
}

impl Queue {
    /// Moves a request on until it is over or has to wait.
    pub(super) fn run(&mut self, index: u32) {
        loop {
            let devices = self.channels.len();
            let is_abandoned = self.is_abandoned;
            let slot = self.slots.get(index);
            match slot.op {
                SlotOperation::Flush { device } if device == devices => {
                    return self.complete(index, self.mapping.flushed());
                }
                SlotOperation::Flush { .. } => {}
                _ if slot.at < slot.end && is_abandoned => return self.complete(index, Err(abandoned())),
                _ if slot.at < slot.end => {}
                SlotOperation::Modify { reads: true, .. } => {
                    self.overlay(index);
                    continue;
                }
                _ if slot.then_flush => {
                    slot.op = SlotOperation::Flush { device: 0 };
                    continue;
                }
                _ => return self.complete(index, Ok(())),
            }
            if slot.op == SlotOperation::WriteZeros && self.zeros_left == 0 {
                // A file in memory takes zeros without blocking: without this the loop would not
                // end.
                return self.long_zeros.push_back(index);
            }
            match self.step(index) {
                StepOutcome::Done => {}
                StepOutcome::Pending => return,
                StepOutcome::Failed(e) => return self.complete(index, Err(e)),
            }
        }
    }

    /// Begins a turn: a turn makes and writes about one piece of zeros, whatever number of requests
    /// wants zeros.
    pub(super) fn write_long_zeros(&mut self) {
        self.zeros_left = ZEROS;
        for _ in 0..self.long_zeros.len() {
            if self.zeros_left == 0 {
                return;
            }
            if let Some(index) = self.long_zeros.pop_front() {
                self.run(index);
            }
        }
    }

    /// Continues after a step that was taken outside of [`Queue::run`].
    fn went_on(&mut self, index: u32, step: StepOutcome) {
        match step {
            StepOutcome::Done => self.run(index),
            StepOutcome::Pending => {}
            StepOutcome::Failed(e) => self.complete(index, Err(e)),
        }
    }

    /// Does the next piece, or hands it to a worker or the lower device.
    fn step(&mut self, index: u32) -> StepOutcome {
        let slot = self.slots.get(index);
        let op = slot.op;
        if let SlotOperation::Flush { device } = op {
            return self.start(index, device, Io::Flush);
        }
        let Some(volume) = self.settings_versions.volume(slot.version) else {
            return StepOutcome::Failed(no_key());
        };
        let Some(piece) = Piece::next_of(slot, volume) else { return StepOutcome::Failed(beyond()) };
        slot.piece = piece;
        match piece.place {
            PieceKind::Stored => {}
            PieceKind::Zero => {
                if let (true, SlotStage::Ready(Some(buffer))) = (op.reads(), &mut slot.stage) {
                    buffer[piece.range()].fill(0);
                }
                slot.bring(&piece);
                return self.advance(index);
            }
            PieceKind::Error => return StepOutcome::Failed(piece.error()),
        }
        if op.zeroes() && slot.order == WriteOrder::Arrival && self.order.first() != Some(index) {
            slot.stage = SlotStage::Turn(slot.stage.take());
            return StepOutcome::Pending;
        }
        let (device, offset, len) = (piece.device, piece.lower, piece.len);
        match (op, slot.stage.take()) {
            (SlotOperation::Discard, _) if !self.mapping.discards() => self.advance(index),
            (SlotOperation::Discard, _) => self.start(index, device, Io::Discard { offset, len }),
            (SlotOperation::Prefetch, _) => self.start(index, device, Io::Prefetch { offset, len }),
            // The volume was unencrypted here when this request arrived; it no longer is.
            (SlotOperation::ZeroBelow { fast, .. }, _) if !piece.is_null(volume) => {
                self.write_zeros_instead(index, fast)
            }
            (SlotOperation::ZeroBelow { punch, .. }, _) => {
                self.start(index, device, Io::Zero { offset, len, punch })
            }
            (SlotOperation::WriteZeros, None) => self.write_zeros_instead(index, false),
            (SlotOperation::WriteZeros, Some(mut buffer)) => {
                buffer[piece.range()].fill(0);
                self.zeros_left = self.zeros_left.saturating_sub(piece.len);
                let tags = slot.tags.as_deref_mut().unwrap_or_default();
                match piece.encrypt(volume, None, &mut buffer, tags) {
                    Ok(()) => self.write(index, buffer),
                    Err(refused) => self.fail(index, buffer, refused.into()),
                }
            }
            (op, Some(buffer)) if op.reads() => self.read(index, buffer),
            (_, Some(buffer)) => self.encrypt(index, buffer),
            (_, None) => StepOutcome::Failed(kept()),
        }
    }

    fn read(&mut self, index: u32, mut buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        slot.since = self.now;
        let piece = slot.piece;
        let tags = slot.tags.as_deref_mut().unwrap_or_default();
        let now = piece.read_now(&mut *self.channels[piece.device], &mut buffer, tags);
        self.adaptive.saw_read(matches!(now, Immediate::Blocked(_)));
        match now {
            Immediate::Done => {
                self.lower_over(index);
                self.decrypt(index, buffer)
            }
            Immediate::Blocked(done) => self.start_rest(index, buffer, done),
            Immediate::Failed(e) => {
                let error = self.unread(&piece, e);
                self.fail(index, buffer, error)
            }
        }
    }

    /// Writes a piece that is encrypted.
    fn write(&mut self, index: u32, buffer: Buffer) -> StepOutcome {
        let slot = self.slots.get(index);
        slot.since = self.now;
        let piece = slot.piece;
        if slot.op.is_durable() {
            return self.start_rest(index, buffer, 0);
        }
        let tags = slot.tags.as_deref().unwrap_or_default();
        match piece.write_now(&mut *self.channels[piece.device], &buffer, tags) {
            Immediate::Done => {
                self.slots.get(index).stage = SlotStage::Ready(Some(buffer));
                self.lower_over(index);
                self.advance(index)
            }
            Immediate::Blocked(done) => self.start_rest(index, buffer, done),
            Immediate::Failed(e) => {
                let error = self.lower(piece.device, e);
                self.fail(index, buffer, error)
            }
        }
    }

    /// Starts the rest of a piece in the ring, after `done` bytes were read or written.
    fn start_rest(&mut self, index: u32, mut buffer: Buffer, done: usize) -> StepOutcome {
        if let Err(failure) = self.take_rest(index, &mut buffer) {
            return self.fail(index, buffer, failure.into());
        }
        let slot = self.slots.get(index);
        let piece = slot.piece;
        let durable = slot.op.is_durable();
        let io = if piece.tags > 0 {
            // A piece with tuples is read or written as a whole.
            let (offset, range) = (piece.lower, piece.range());
            let Some(tags) = slot.tags.take() else { return self.fail(index, buffer, kept()) };
            match slot.op.reads() {
                true => Io::ReadTagged { offset, buffer, range, tags },
                false => Io::WriteTagged { offset, buffer, range, tags, durable },
            }
        } else {
            let (offset, mut range) = (piece.lower + done as u64, piece.range());
            range.start += done;
            match slot.op.reads() {
                true => Io::Read { offset, buffer, range },
                false => Io::Write { offset, buffer, range, durable },
            }
        };
        self.start(index, piece.device, io)
    }

    /// Makes one piece of the rest of a request with cached pieces, after the lower device did not
    /// take the current piece at once. The rest of a write is encrypted.
    fn take_rest(&mut self, index: u32, buffer: &mut [u8]) -> std::result::Result<(), CryptoFailure> {
        let slot = self.slots.get(index);
        if !slot.is_cached() || slot.piece.end() >= slot.end {
            return Ok(());
        }
        let Some(volume) = self.settings_versions.volume(slot.version) else { return Ok(()) };
        let whole = slot.piece.with_rest(slot, volume);
        if !slot.op.reads() {
            let rest = whole.behind(&slot.piece);
            rest.encrypt(volume, slot.direct(), buffer, &mut [])?;
        }
        slot.piece = whole;
        Ok(())
    }

    fn start(&mut self, index: u32, device: usize, io: Io) -> StepOutcome {
        let slot = self.slots.get(index);
        slot.device = device;
        slot.stage =
            if let Io::Flush = io { SlotStage::Flushes(slot.stage.take()) } else { SlotStage::Below };
        let channel = &mut self.channels[device];
        match self.ring.channel(device, |ring| channel.start(ring, index, io)) {
            Started::Pending => StepOutcome::Pending,
            Started::Finished(done) => self.piece_over(index, done),
        }
    }

    /// Handles a completion of the lower device.
    pub(super) fn finished(&mut self, done: Finished) {
        let index = done.slot;
        if !self.slots.has(index) {
            log::error!("a lower device finished a request that it was not given");
            return;
        }
        let step = self.piece_over(index, done);
        self.went_on(index, step);
    }

    fn piece_over(&mut self, index: u32, done: Finished) -> StepOutcome {
        let Finished { buffer, tags, result, .. } = done;
        let slot = self.slots.get(index);
        slot.tags = slot.tags.take().or(tags);
        slot.stage = SlotStage::Ready(slot.stage.take().or(buffer));
        if let Err(e) = result {
            if let (SlotOperation::ZeroBelow { fast, .. }, true) = (slot.op, unsupported(&e)) {
                return self.write_zeros_instead(index, fast);
            }
            let (device, piece) = (slot.device, slot.piece);
            let failed = if slot.op.reads() { self.unread(&piece, e) } else { self.lower(device, e) };
            return StepOutcome::Failed(failed);
        }
        if let SlotOperation::Flush { device } = &mut slot.op {
            *device += 1;
            return StepOutcome::Done;
        }
        let reads = slot.op.reads();
        self.lower_over(index);
        if !reads {
            return self.advance(index);
        }
        match self.slots.get(index).stage.take() {
            Some(buffer) => self.decrypt(index, buffer),
            None => StepOutcome::Failed(kept()),
        }
    }

    fn write_zeros_instead(&mut self, index: u32, fast: bool) -> StepOutcome {
        if fast {
            let context = "the lower device cannot zero without writing";
            return StepOutcome::Failed(Error::new(ErrorKind::Unsupported, context));
        }
        let slot = self.slots.get(index);
        let len = slot.end - slot.at;
        // The request came without memory for zeros: nothing was to be written then.
        let sector = self.mapping.sector();
        let buffer = self.zeros(len).or_else(|| self.zeros(sector.into()));
        // The requests that have all the queue's memory may be waiting for this one.
        let Some(buffer) = buffer.or_else(|| Arena::new(sector as usize).ok()?.alloc(sector as usize)) else {
            return self.starves(index);
        };
        if self.slots.get(index).tags.is_none() {
            match self.tags(buffer.len() as u64) {
                Ok(tags) => self.slots.get(index).tags = tags,
                Err(Full) => {
                    drop(self.arena.take_back(buffer));
                    return self.starves(index);
                }
            }
        }
        let slot = self.slots.get(index);
        (slot.op, slot.stage) = (SlotOperation::WriteZeros, SlotStage::Ready(Some(buffer)));
        StepOutcome::Done
    }

    /// Notes that a request waits for memory for its zeros.
    fn starves(&mut self, index: u32) -> StepOutcome {
        self.slots.get(index).op = SlotOperation::WriteZeros;
        self.starved.push_back(index);
        StepOutcome::Pending
    }

    /// Submits the writes whose turn it is. False when there is none. Writes that wait for their
    /// turn are submitted here only: each event that may end their waiting is followed by a call.
    pub(super) fn write_in_order(&mut self) -> bool {
        let batch = self.order.batch();
        let mut any = batch.is_some();
        if let Some(mut batch) = batch {
            // A finished write may let others begin, which are submitted by the next call.
            for (_, _, index) in batch.drain(..) {
                if let Some(buffer) = self.slots.get(index).stage.take() {
                    let step = self.write(index, buffer);
                    self.went_on(index, step);
                }
            }
            self.order.reuse(batch);
        }
        while let Some(index) = self.order.first() {
            let slot = self.slots.get(index);
            match slot.stage {
                SlotStage::Encrypted(_) => {
                    if let Some(buffer) = slot.stage.take() {
                        self.leave_line(index);
                        let step = self.write(index, buffer);
                        self.went_on(index, step);
                    }
                }
                SlotStage::Turn(_) => {
                    slot.stage = SlotStage::Ready(slot.stage.take());
                    self.run(index);
                }
                _ => break,
            }
            any = true;
        }
        any
    }

    /// Notes that a piece is submitted. A write of several pieces keeps its place in the order
    /// until its last piece is.
    fn leave_line(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if slot.piece.end() >= slot.end {
            self.order.forget(index);
        }
    }

    /// Notes that the lower device is done with a piece.
    fn lower_over(&mut self, index: u32) {
        let now = self.tick();
        let slot = self.slots.get(index);
        let latency = now.saturating_duration_since(slot.since);
        slot.since = now;
        self.inbox.stats.lower.record(nanos(latency), 1);
    }

    /// Returns the error of a failed read. A sector that a device's tags refuse counts like one
    /// that a cipher refuses.
    pub(super) fn unread(&self, piece: &Piece, e: underseal_device::Error) -> Error {
        let at = e.mismatch_at().and_then(|at| at.checked_sub(piece.lower)).filter(|skip| *skip < piece.len);
        let error = self.lower(piece.device, e);
        if error.kind() == ErrorKind::Integrity {
            self.inbox.stats.mismatches.add(piece.at + at.unwrap_or(0));
        }
        error
    }

    pub(super) fn lower(&self, device: usize, e: underseal_device::Error) -> Error {
        Error::lower(self.mapping.devices()[device].name(), e)
    }

    /// Moves a slot behind its piece.
    fn advance(&mut self, index: u32) -> StepOutcome {
        let slot = self.slots.get(index);
        slot.at += slot.piece.len;
        self.moved += slot.piece.len;
        StepOutcome::Done
    }

    /// Returns the piece's memory to the slot, and the error.
    fn fail(&mut self, index: u32, buffer: Buffer, error: Error) -> StepOutcome {
        self.slots.get(index).stage = SlotStage::Ready(Some(buffer));
        StepOutcome::Failed(error)
    }

    /// Completes a request or a part of one.
    fn complete(&mut self, index: u32, result: Result<()>) {
        let slot = self.slots.get(index);
        if slot.order == WriteOrder::Arrival {
            self.order.forget(index);
        }
        if let Some(part) = slot.part_of {
            return self.part_over(part.parent, result);
        }
        self.unlock(index);
        let Slot { tag, op, version, mut stage, spare, tags, shared, start, end, class, arrived, .. } =
            self.slots.take(index);
        self.settings_versions.unpin(version);
        let mut buffer = stage.take();
        if class != RequestClass::Read && class != RequestClass::Flush {
            self.writes.leave(&index, |next| self.runnable.push_back(*next));
        }
        spare.into_iter().chain([tags]).flatten().for_each(|scratch| self.arena.free(scratch));
        let bytes = match (op, &mut buffer) {
            (SlotOperation::Read { view: Some((from, len)) }, Some(buffer)) => {
                buffer.copy_within(from..from + len, 0);
                buffer.truncate(len);
                if let (Some(shared), Ok(())) = (&shared, &result) {
                    shared.bytes.copy_from(0, buffer);
                }
                len as u64
            }
            _ => end - start,
        };
        self.spare_shared.extend(shared.and_then(|shared| shared.bytes.reuse()));
        if class == RequestClass::Other
            && let Some(zeros) = buffer.take()
        {
            // Memory beside the queue's own is dropped.
            drop(self.arena.take_back(zeros));
        }
        self.requests -= 1;
        self.count(class, bytes, result.is_ok());
        let latency = self.now.saturating_duration_since(arrived);
        self.inbox.stats.total.record(nanos(latency), 1);
        self.inbox.stats.in_flight.store(self.requests.into(), std::sync::atomic::Ordering::Relaxed);
        self.ready.push_back(Completion { tag, result, buffer });
    }
}

/// Whether zeros are to be written instead. A block device is busy where its page cache cannot be
/// let go of, as beside another writer.
fn unsupported(e: &underseal_device::Error) -> bool {
    use rustix::io::Errno;
    [Errno::OPNOTSUPP, Errno::BUSY].map(|errno| Some(errno.raw_os_error())).contains(&e.errno())
}

fn beyond() -> Error {
    Error::new(ErrorKind::OutOfRange, "beyond the volume's end")
}

/// The lower device broke its contract.
fn kept() -> Error {
    Error::new(ErrorKind::Lower, "the request's memory did not come back from the lower device")
}

fn no_key() -> Error {
    Error::new(ErrorKind::NoKey, "the volume's key is wiped")
}
