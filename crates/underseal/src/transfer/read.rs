//! Reading from a volume.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use underseal_datapath::{Buffer, ErrorKind, Mapping, Request};

use super::{DEPTH, chunk_end, length, queue, submit, wait_for_any};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::progress::Progress;

/// Copies `range` of the volume, which need not be aligned, to `out`. Fails with the error of the
/// volume or of `out`; the bytes before it are in `out`.
pub(crate) fn read(
    mapping: &Arc<Mapping>,
    range: Range<u64>,
    out: &mut impl Write,
    progress: &mut Progress,
) -> Result<()> {
    Reading { mapping, range, progress, lost: None }.run(out)
}

/// Copies as [`read`], but replaces sectors whose tags do not match by zeros, and reports them to
/// `lost`, in order. Fails as [`read`], for any other error.
pub(crate) fn salvage(
    mapping: &Arc<Mapping>,
    range: Range<u64>,
    out: &mut impl Write,
    progress: &mut Progress,
    lost: &mut dyn FnMut(Range<u64>),
) -> Result<()> {
    Reading { mapping, range, progress, lost: Some(lost) }.run(out)
}

struct Reading<'r> {
    mapping: &'r Arc<Mapping>,
    range: Range<u64>,
    progress: &'r mut Progress,
    /// The receiver of lost ranges; `None` ends the copy at the first one.
    lost: Option<&'r mut dyn FnMut(Range<u64>)>,
}

impl Reading<'_> {
    fn run(mut self, out: &mut impl Write) -> Result<()> {
        let Range { start, end } = self.range;
        if self.range.is_empty() {
            return Ok(());
        }
        let block = u64::from(self.mapping.block());
        let last = end.next_multiple_of(block);
        let mut queue = queue(self.mapping)?;
        let mut next = start / block * block;
        // Chunks in the volume's order, from the one with the tag `first` on; they complete in any
        // order.
        let mut window: VecDeque<Chunk> = VecDeque::with_capacity(DEPTH as usize);
        let mut first = 0;
        while next < last || !window.is_empty() {
            while next < last && window.len() < DEPTH as usize {
                let len = chunk_end(next).min(last) - next;
                let tag = first + window.len() as u64;
                submit(&mut queue, tag, Request::Read { offset: next, len: length(len) })?;
                window.push_back(Chunk { at: next, len, came: None });
                next += len;
            }
            let completion = wait_for_any(&mut queue)?;
            let chunk = &mut window[length(completion.tag - first)];
            chunk.came = Some(match (completion.result, completion.buffer) {
                (Ok(()), buffer) => Ok(buffer),
                (Err(e), buffer) if self.lost.is_some() && e.kind() == ErrorKind::Integrity => {
                    buffer.into_iter().for_each(|buffer| queue.free(buffer));
                    Err(())
                }
                (Err(e), _) => return Err(e.into()),
            });
            while let Some(chunk) = window.front_mut()
                && let Some(came) = chunk.came.take()
            {
                let (at, len) = (chunk.at, chunk.len);
                match came {
                    Ok(Some(bytes)) => {
                        self.give(out, at, &bytes)?;
                        queue.free(bytes);
                    }
                    Ok(None) => {}
                    Err(()) => {
                        let bytes = self.by_blocks(at, len)?;
                        self.give(out, at, &bytes)?;
                    }
                }
                window.pop_front();
                first += 1;
            }
        }
        Ok(())
    }

    /// Writes the requested part of a chunk.
    fn give(&mut self, out: &mut impl Write, at: u64, bytes: &[u8]) -> Result<()> {
        let wanted = &bytes[index(self.range.start, at, bytes)..index(self.range.end, at, bytes)];
        out.write_all(wanted).map_err(|e| Error::new(Exit::Failed, "cannot write the output").because(&e))?;
        self.progress.advance(wanted.len() as u64);
        Ok(())
    }

    /// Reads a chunk with lost blocks, block by block, with zeros for these.
    fn by_blocks(&mut self, at: u64, len: u64) -> Result<Vec<u8>> {
        let block = u64::from(self.mapping.block());
        let mut bytes = vec![0; length(len)];
        // A separate queue: completions of the other one belong to other chunks.
        let mut queue = queue(self.mapping)?;
        for (from, to) in (at..).step_by(length(block)).zip(bytes.chunks_mut(length(block))) {
            submit(&mut queue, 0, Request::Read { offset: from, len: to.len() })?;
            let completion = wait_for_any(&mut queue)?;
            match (completion.result, completion.buffer, &mut self.lost) {
                (Ok(()), Some(buffer), _) => {
                    to.copy_from_slice(&buffer);
                    queue.free(buffer);
                }
                (Err(e), buffer, Some(lost)) if e.kind() == ErrorKind::Integrity => {
                    buffer.into_iter().for_each(|buffer| queue.free(buffer));
                    lost(from..from + to.len() as u64);
                }
                (result, ..) => result?,
            }
        }
        Ok(bytes)
    }
}

struct Chunk {
    at: u64,
    len: u64,
    /// `None` while it is in flight; an error when part of it is lost.
    came: Option<std::result::Result<Option<Buffer>, ()>>,
}

/// Returns the index of the volume's byte `position` in a buffer that begins at `at`, or the
/// buffer's nearer end.
fn index(position: u64, at: u64, buffer: &[u8]) -> usize {
    length(position.saturating_sub(at).min(buffer.len() as u64))
}
