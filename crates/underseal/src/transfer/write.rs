//! Writing to a volume.

use std::io::{self, Read};
use std::sync::Arc;

use underseal_datapath::{Buffer, Completion, Mapping, Queue, Request};

use super::{DEPTH, chunk_end, length, queue, submit, wait, wait_for_any};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::progress::Progress;

/// Copies all of `input` to the volume from `offset` on, which need not be aligned, flushes, and
/// returns its length. Fails with the error of the volume or of `input`, and the number of bytes
/// before it; or when the input extends beyond the volume's end. A refused write is `Usage` only
/// when no byte was written.
pub(crate) fn write(
    mapping: &Arc<Mapping>,
    offset: u64,
    input: &mut impl Read,
    progress: &mut Progress,
) -> Result<u64> {
    let (queue, block) = (queue(mapping)?, u64::from(mapping.block()));
    let mut writer = Writer { queue, block, pending: 0, failed: None, has_written: false };
    let mut at = offset;
    let copied = writer.copy(mapping.size(), &mut at, input, progress);
    // After an error, too: the bytes before it must be on the disk.
    let flushed = writer.flush();
    let done = writer.failed.unwrap_or(at) - offset;
    copied.and(flushed).map_err(|e| {
        let e = if writer.has_written { e.into_failed() } else { e };
        e.within(format_args!("after {done} bytes"))
    })?;
    Ok(done)
}

struct Writer {
    queue: Queue,
    block: u64,
    /// Writes that were submitted and not collected yet.
    pending: u32,
    /// The first byte, of the input's bytes in the volume, of the failed writes' first.
    failed: Option<u64>,
    /// True after a write that succeeded.
    has_written: bool,
}

impl Writer {
    fn copy(
        &mut self,
        size: u64,
        at: &mut u64,
        input: &mut impl Read,
        progress: &mut Progress,
    ) -> Result<()> {
        while *at < size {
            // The chunk begins at a block's start; the input fills it from `at` on.
            let start = *at / self.block * self.block;
            let skipped = length(*at - start);
            if self.pending == DEPTH {
                self.take_back()?;
            }
            let mut chunk = self.alloc(chunk_end(start).min(size) - start)?;
            let filled = fill(&mut chunk[skipped..], input)?;
            let end = *at + filled as u64;
            let chunk = self.complete(chunk, start, skipped, end)?;
            if filled == 0 {
                self.queue.free(chunk);
                return Ok(());
            }
            // The tag is the place of the chunk's first byte of the input.
            submit(&mut self.queue, *at, Request::Write { offset: start, data: chunk, durable: false })?;
            self.pending += 1;
            *at = end;
            progress.advance(filled as u64);
        }
        if fill(&mut [0], input)? > 0 {
            let error = Error::new(Exit::Failed, "the input goes on beyond the volume's end");
            return Err(error.with_remedy("a shorter input, or a larger volume"));
        }
        Ok(())
    }

    /// Completes a chunk that the input fills in part to whole blocks: the rest is read from the
    /// volume.
    fn complete(&mut self, mut chunk: Buffer, start: u64, skipped: usize, end: u64) -> Result<Buffer> {
        let blocks_end = end.next_multiple_of(self.block);
        if skipped > 0 {
            let old = self.old_block(start)?;
            chunk[..skipped].copy_from_slice(&old[..skipped]);
            self.queue.free(old);
        }
        if end < blocks_end {
            let first_kept = length(end - (blocks_end - self.block));
            let old = self.old_block(blocks_end - self.block)?;
            let to = length(end - start)..length(blocks_end - start);
            chunk[to].copy_from_slice(&old[first_kept..]);
            self.queue.free(old);
        }
        let len = blocks_end - start;
        if chunk.len() as u64 == len {
            return Ok(chunk);
        }
        // The input has ended: only its blocks are written.
        let mut short = self.alloc(len)?;
        short.copy_from_slice(&chunk[..length(len)]);
        self.queue.free(chunk);
        Ok(short)
    }

    /// Returns the old contents of a block that is written in part: the input's first or last. No
    /// write to it is in flight.
    fn old_block(&mut self, offset: u64) -> Result<Buffer> {
        self.drain()?;
        submit(&mut self.queue, 0, Request::Read { offset, len: length(self.block) })?;
        let (_, block) = wait(&mut self.queue)?;
        block.ok_or_else(|| Error::new(Exit::Failed, "a read brought nothing"))
    }

    fn flush(&mut self) -> Result<()> {
        let drained = self.drain();
        submit(&mut self.queue, 0, Request::Flush)?;
        drained.and(wait(&mut self.queue).map(drop))
    }

    /// Waits for all writes, and returns the first failure.
    fn drain(&mut self) -> Result<()> {
        let mut result = Ok(());
        while self.pending > 0 {
            result = result.and(self.take_back());
        }
        result
    }

    /// Waits for one write and collects its memory.
    fn take_back(&mut self) -> Result<()> {
        self.pending -= 1;
        let Completion { tag, result, buffer, .. } = wait_for_any(&mut self.queue)?;
        buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        match result {
            Ok(()) => self.has_written = true,
            Err(_) => self.failed = Some(self.failed.map_or(tag, |failed| failed.min(tag))),
        }
        Ok(result?)
    }

    fn alloc(&mut self, len: u64) -> Result<Buffer> {
        let buffer = self.queue.alloc(length(len));
        buffer.ok_or_else(|| Error::new(Exit::Failed, "no memory left for requests"))
    }
}

/// Reads until the buffer is full or the input ends, and returns the length.
fn fill(buffer: &mut [u8], input: &mut impl Read) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::new(Exit::Failed, "cannot read the input").because(&e)),
        }
    }
    Ok(filled)
}
