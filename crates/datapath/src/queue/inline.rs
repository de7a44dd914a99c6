//! The inline policy: a request moves on in the queue's own thread, as far as it can at once.

use std::ops::Range;

use underseal_cipher::InOutBuf;
use underseal_device::{Buffer, Finished, Io, Now, Started};
use underseal_volume::{Segment, SegmentKind};

use super::Queue;
use crate::slot::{Job, Slot};
use crate::{Completion, Error, ErrorKind, Mapping, Result};

/// Encrypted zeros are made and written in pieces of this many bytes.
const ZEROS: u64 = 1 << 20;

/// The piece of a request that lies in one segment.
struct Piece {
    /// Its number: cloning the segment would count references on a cache line that all queues share.
    segment: usize,
    /// Where it begins in the volume.
    at: u64,
    len: u64,
    /// Where its bytes are in the request's buffer.
    range: Range<usize>,
}

impl Piece {
    fn segment<'m>(&self, mapping: &'m Mapping) -> &'m Segment {
        mapping.segment(self.segment)
    }

    /// Where it begins on the lower device.
    fn lower(&self, mapping: &Mapping) -> u64 {
        self.segment(mapping).lower_offset(self.at)
    }

    fn place(&self, mapping: &Mapping) -> Place {
        let segment = self.segment(mapping);
        match segment.kind {
            SegmentKind::Stored => Place::On(segment.device),
            SegmentKind::Zero => Place::Zero,
            SegmentKind::Error => Place::Error,
        }
    }

    fn error(&self) -> Error {
        let context = format!("bytes {} + {}: an error segment, as its table says", self.at, self.len);
        Error::new(ErrorKind::Lower, context)
    }

    fn encrypt(&self, mapping: &Mapping, bytes: &mut [u8]) {
        let segment = self.segment(mapping);
        segment.cipher.encrypt(segment.sector(self.at), InOutBuf::from(bytes));
    }

    fn decrypt(&self, mapping: &Mapping, bytes: &mut [u8]) {
        let segment = self.segment(mapping);
        segment.cipher.decrypt(segment.sector(self.at), InOutBuf::from(bytes));
    }
}

/// Where a piece lies.
enum Place {
    /// The lower device of this number.
    On(usize),
    Zero,
    Error,
}

/// What a step came to.
enum Step {
    /// The piece is done.
    Done,
    /// The lower device has it.
    Pending,
    Failed(Error),
}

impl Queue {
    /// Memory to make encrypted zeros in.
    pub(super) fn zeros(&mut self, len: u64) -> Option<Buffer> {
        self.arena.alloc(usize::try_from(len.min(ZEROS)).ok()?)
    }

    /// Moves a request on until it is over or has to wait.
    pub(super) fn run(&mut self, index: u32) {
        loop {
            let devices = self.channels.len();
            let slot = self.slots.get(index);
            match slot.job {
                Job::Flush { device } if device == devices => return self.complete(index, Ok(())),
                Job::Flush { .. } => {}
                _ if slot.at < slot.end => {}
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

    /// Does the next piece, or hands it to the lower device.
    fn step(&mut self, index: u32) -> Step {
        let slot = self.slots.get(index);
        if let Job::Flush { device } = slot.job {
            return self.start(index, device, Io::Flush);
        }
        let Some(piece) = piece(&self.mapping, slot) else {
            return Step::Failed(Error::new(ErrorKind::OutOfRange, "beyond the volume's end"));
        };
        let device = match piece.place(&self.mapping) {
            Place::On(device) => device,
            Place::Zero => {
                if let (Job::Read, Some(buffer)) = (slot.job, &mut slot.buffer) {
                    buffer[piece.range.clone()].fill(0);
                }
                self.advance(index, piece.len);
                return Step::Done;
            }
            Place::Error => return Step::Failed(piece.error()),
        };
        let (offset, len) = (piece.lower(&self.mapping), piece.len);
        match slot.job {
            Job::Read => self.read(index, device, &piece),
            Job::Write { durable } => {
                let Some(mut buffer) = slot.buffer.take() else { return lost_memory() };
                piece.encrypt(&self.mapping, &mut buffer[piece.range.clone()]);
                self.write(index, device, buffer, &piece, durable)
            }
            Job::WriteZeros => {
                let Some(mut buffer) = slot.buffer.take() else { return lost_memory() };
                let bytes = &mut buffer[piece.range.clone()];
                bytes.fill(0);
                piece.encrypt(&self.mapping, bytes);
                self.write(index, device, buffer, &piece, false)
            }
            Job::ZeroBelow { punch, .. } => self.start(index, device, Io::Zero { offset, len, punch }),
            Job::Discard if !self.mapping.discards() => {
                self.advance(index, len);
                Step::Done
            }
            Job::Discard => self.start(index, device, Io::Discard { offset, len }),
            Job::Prefetch => self.start(index, device, Io::Prefetch { offset, len }),
            Job::Flush { .. } => unreachable!("handled above"),
        }
    }

    fn read(&mut self, index: u32, device: usize, piece: &Piece) -> Step {
        let Some(mut buffer) = self.slots.get(index).buffer.take() else { return lost_memory() };
        let bytes = &mut buffer[piece.range.clone()];
        match self.channels[device].read_now(piece.lower(&self.mapping), bytes) {
            Now::Done => {
                piece.decrypt(&self.mapping, bytes);
                self.slots.get(index).buffer = Some(buffer);
                self.advance(index, piece.len);
                Step::Done
            }
            Now::Blocked(done) => {
                let offset = piece.lower(&self.mapping) + done as u64;
                self.start(
                    index,
                    device,
                    Io::Read { offset, buffer, range: piece.range.start + done..piece.range.end },
                )
            }
            Now::Failed(e) => {
                self.slots.get(index).buffer = Some(buffer);
                Step::Failed(self.lower(device, e))
            }
        }
    }

    /// Writes a piece whose bytes are encrypted.
    fn write(&mut self, index: u32, device: usize, buffer: Buffer, piece: &Piece, durable: bool) -> Step {
        let mut range = piece.range.clone();
        if !durable {
            match self.channels[device].write_now(piece.lower(&self.mapping), &buffer[range.clone()]) {
                Now::Done => {
                    self.slots.get(index).buffer = Some(buffer);
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
        let offset = piece.lower(&self.mapping) + (range.start - piece.range.start) as u64;
        self.start(index, device, Io::Write { offset, buffer, range, durable })
    }

    /// Writes scratch memory as far as that goes at once. What was reached, and how it ended; the piece at which it
    /// stopped is encrypted whole.
    pub(super) fn write_now(&mut self, offset: u64, data: &mut [u8]) -> (u64, Result<()>) {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let Some(piece) = piece_at(&self.mapping, at, end, offset) else { break };
            let device = match piece.place(&self.mapping) {
                Place::On(device) => device,
                Place::Zero => {
                    at += piece.len;
                    continue;
                }
                Place::Error => return (at, Err(piece.error())),
            };
            let bytes = &mut data[piece.range.clone()];
            piece.encrypt(&self.mapping, bytes);
            match self.channels[device].write_now(piece.lower(&self.mapping), bytes) {
                Now::Done => at += piece.len,
                Now::Blocked(_) => break,
                Now::Failed(e) => return (at, Err(self.lower(device, e))),
            }
        }
        (at, Ok(()))
    }

    /// Hands the next piece of a write to the lower device: it is encrypted already.
    pub(super) fn start_encrypted(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (Some(piece), Some(buffer)) = (piece(&self.mapping, slot), slot.buffer.take()) else { return };
        let write = Io::Write {
            offset: piece.lower(&self.mapping),
            buffer,
            range: piece.range.clone(),
            durable: false,
        };
        // Only a device can make a write wait.
        let device = piece.segment(&self.mapping).device;
        match self.start(index, device, write) {
            Step::Pending => {}
            Step::Done => self.run(index),
            Step::Failed(e) => self.complete(index, Err(e)),
        }
    }

    fn start(&mut self, index: u32, device: usize, io: Io) -> Step {
        self.slots.get(index).device = device;
        match self.channels[device].start(&mut self.ring, index, io) {
            Started::Pending => Step::Pending,
            Started::Finished(done) => self.piece_over(done),
        }
    }

    /// A request came back from the lower device.
    pub(super) fn finished(&mut self, done: Finished) {
        let index = done.slot;
        match self.piece_over(done) {
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
        let Some(piece) = piece(&self.mapping, slot) else { return Step::Done };
        if let (Job::Read, Some(buffer)) = (slot.job, &mut slot.buffer) {
            piece.decrypt(&self.mapping, &mut buffer[piece.range.clone()]);
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

    fn lower(&self, device: usize, e: underseal_device::Error) -> Error {
        Error::lower(self.mapping.devices()[device].name(), e)
    }

    fn advance(&mut self, index: u32, len: u64) {
        self.slots.get(index).at += len;
    }

    fn complete(&mut self, index: u32, result: Result<()>) {
        let Slot { tag, job, mut buffer, .. } = self.slots.take(index);
        if !matches!(job, Job::Read | Job::Write { .. })
            && let Some(zeros) = buffer.take()
        {
            self.arena.free(zeros);
        }
        self.ready.push_back(Completion { tag, result, buffer });
    }
}

fn piece(mapping: &Mapping, slot: &Slot) -> Option<Piece> {
    match slot.job {
        // The buffer holds one piece at a time.
        Job::WriteZeros => piece_at(mapping, slot.at, slot.end.min(slot.at + ZEROS), slot.at),
        _ => piece_at(mapping, slot.at, slot.end, slot.start),
    }
}

/// The piece from `at` to `end` or the segment's end; the buffer's first byte is the volume's byte `base`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "ranges with a buffer are shorter than the address space"
)]
fn piece_at(mapping: &Mapping, at: u64, end: u64, base: u64) -> Option<Piece> {
    let segment = mapping.segment_index(at)?;
    let len = end.min(mapping.segment(segment).end()) - at;
    let from = (at - base) as usize;
    Some(Piece { segment, at, len, range: from..from + len as usize })
}

fn unsupported(e: &underseal_device::Error) -> bool {
    const EOPNOTSUPP: i32 = 95;
    e.errno() == Some(EOPNOTSUPP)
}

fn lost_memory() -> Step {
    Step::Failed(Error::new(ErrorKind::Lower, "the request's memory did not come back from the lower device"))
}
