//! Conversion of bytes from one form to another.
//!
//! The processors convert a piece in chunks that fit in a cache: one processor reads, hashes,
//! decrypts and encrypts a chunk.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use underseal_cipher::InOutBuf;

use super::bytes::Bytes;
use super::protect::Blocks;
use super::{Options, Plan, Protection, Step, plan};
use crate::storage::{self, Target};
use crate::volume::Stored;
use crate::{Error, ErrorKind, Result};

/// A multiple of every sector size and every checksum's block.
const CHUNK: usize = 256 << 10;

/// The data, the plan and the number of workers.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) data: &'a (dyn Target + Sync),
    pub(super) plan: &'a Plan,
    pub(super) workers: usize,
    /// The number of bytes of a step that are converted at once.
    pub(super) piece: u64,
}

/// A piece of a step, made in memory.
#[derive(Default)]
pub(super) struct Made {
    /// The bytes of the step.
    pub(super) piece: Range<u64>,
    /// The bytes in their new form.
    pub(super) new: Bytes,
    /// The bytes for the area: hashes of old bytes, or the old bytes themselves.
    pub(super) guard: Bytes,
}

impl Step {
    /// Returns the number of bytes in the area for the first `bytes` bytes of the step.
    pub(super) fn guard_len(&self, bytes: u64) -> u64 {
        plan::room(self.protection, bytes)
    }
}

impl<'a> Work<'a> {
    pub(super) fn new(data: &'a (dyn Target + Sync), plan: &'a Plan, options: &Options) -> Self {
        let piece = (options.memory / CHUNK as u64).max(1) * CHUNK as u64;
        Self { data, plan, workers: options.workers, piece }
    }

    /// Returns the parts of a step that fit in memory, counted from the step's start.
    pub(super) fn pieces(&self, step: &Step) -> impl Iterator<Item = Range<u64>> + use<> {
        let (len, piece) = (step.len(), self.piece);
        (0..len.div_ceil(piece)).map(move |i| i * piece..len.min((i + 1) * piece))
    }

    /// Returns true when all of a step is made at once.
    pub(super) fn is_one_piece(&self, step: &Step) -> bool {
        step.len() <= self.piece
    }

    /// Reads a piece and makes its new form and its protection. After an error the piece is empty.
    ///
    /// Fails with `Io`, `TooSmall` and `Memory`.
    pub(super) fn make(&self, step: &Step, piece: Range<u64>, made: &mut Made) -> Result<()> {
        made.piece = piece.clone();
        let all = self.make_all(step, piece, made);
        if all.is_err() {
            made.new.clear();
        }
        all
    }

    fn make_all(&self, step: &Step, piece: Range<u64>, made: &mut Made) -> Result<()> {
        let guard_len = step.guard_len(piece.end - piece.start);
        made.new.resize(piece.end - piece.start)?;
        made.guard.resize(guard_len)?;
        let blocks = Blocks::of(step.protection);
        let guards = chunks(&mut made.guard, guard_chunk(step));
        let places = (piece.start..piece.end).step_by(CHUNK);
        let parts = places.zip(made.new.chunks_mut(CHUNK)).zip(guards);
        self.share(parts, |((at, chunk), guard)| {
            let (from, place) = (step.source + at, step.range.start + at);
            if step.protection == Protection::Journal {
                // The bytes that are read stay in the guard.
                storage::read_into(self.data, from, guard)?;
                return self.renew_into(place, guard, chunk);
            }
            storage::read_into(self.data, from, chunk)?;
            if let Some(blocks) = &blocks {
                blocks.hash_all(chunk, guard);
            }
            self.renew(place, chunk);
            Ok(())
        })
    }

    /// Converts old bytes of the volume, from its byte `at` on, to new bytes.
    pub(super) fn renew(&self, at: u64, bytes: &mut [u8]) {
        recrypt(&self.plan.old, &self.plan.new, at, bytes);
    }

    /// Like [`Work::renew`], from one buffer to another.
    fn renew_into(&self, at: u64, old: &[u8], new: &mut [u8]) -> Result<()> {
        let Plan { old: from, new: to, .. } = self.plan;
        let unequal = |_| Error::new(ErrorKind::BadLayout, "a journal needs the length of its step");
        from.cipher.decrypt(sector(from, at), InOutBuf::new(old, new).map_err(unequal)?);
        to.cipher.encrypt(sector(to, at), new.into());
        Ok(())
    }

    /// Converts new bytes to the old bytes.
    pub(super) fn age(&self, at: u64, bytes: &mut [u8]) {
        recrypt(&self.plan.new, &self.plan.old, at, bytes);
    }

    /// Divides parts among the processors.
    ///
    /// Fails with the first error of any worker.
    pub(super) fn share<T: Send>(
        &self,
        parts: impl Iterator<Item = T> + Send,
        one: impl Fn(T) -> Result<()> + Sync,
    ) -> Result<()> {
        let parts = Mutex::new(parts);
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || std::iter::from_fn(next).try_for_each(&one);
        let Some(first) = next() else { return Ok(()) };
        let Some(second) = next() else { return one(first) };
        thread::scope(|scope| {
            // A thread that cannot be started is not needed.
            let another = || thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..self.workers).map_while(|_| another()).collect();
            let mine = one(first).and_then(|()| one(second)).and_then(|()| work());
            others.into_iter().map(joined).fold(mine, Result::and)
        })
    }
}

/// Returns the result of a thread of this module.
pub(super) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Cuts the protection into one part for each chunk; the parts are empty without a protection.
pub(super) fn chunks(guard: &mut [u8], len: usize) -> Box<dyn Iterator<Item = &mut [u8]> + Send + '_> {
    match len {
        0 => Box::new(std::iter::repeat_with(|| &mut [][..])),
        _ => Box::new(guard.chunks_mut(len)),
    }
}

/// Returns the number of bytes of the area that protect a chunk.
pub(super) fn guard_chunk(step: &Step) -> usize {
    usize::try_from(step.guard_len(CHUNK as u64)).unwrap_or(usize::MAX)
}

/// Returns the chunks of a piece.
pub(super) fn in_chunks(bytes: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> + Send {
    bytes.chunks_mut(CHUNK).enumerate().map(|(i, chunk)| ((i * CHUNK) as u64, chunk))
}

fn recrypt(from: &Stored, to: &Stored, at: u64, bytes: &mut [u8]) {
    from.cipher.decrypt(sector(from, at), (&mut *bytes).into());
    to.cipher.encrypt(sector(to, at), bytes.into());
}

/// Returns the sector number of the volume's byte `at` for a form's cipher.
fn sector(form: &Stored, at: u64) -> u64 {
    form.iv_offset.wrapping_add(at >> 9)
}
