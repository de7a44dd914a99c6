//! Out of a volume.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use underseal_datapath::{Buffer, Mapping, Request};

use super::{DEPTH, chunk_end, length, queue, submit, wait};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::progress::Progress;

/// Copies `range` of the volume, which need not be aligned, to `out`.
///
/// # Errors
/// What the volume or `out` failed of; what came before is in `out`.
pub(crate) fn read(
    mapping: &Arc<Mapping>,
    range: Range<u64>,
    out: &mut impl Write,
    progress: &mut Progress,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let block = u64::from(mapping.block());
    let end = range.end.next_multiple_of(block);
    let mut queue = queue(mapping)?;
    let mut next = range.start / block * block;
    // In the volume's order, from the one with the tag `first` on; they come back in any order.
    let mut window: VecDeque<Chunk> = VecDeque::with_capacity(DEPTH as usize);
    let mut first = 0;
    while next < end || !window.is_empty() {
        while next < end && window.len() < DEPTH as usize {
            let len = chunk_end(next).min(end) - next;
            let tag = first + window.len() as u64;
            submit(&mut queue, tag, Request::Read { offset: next, len: length(len) })?;
            window.push_back(Chunk { at: next, bytes: None });
            next += len;
        }
        let (tag, bytes) = wait(&mut queue)?;
        window[length(tag - first)].bytes = bytes;
        while let Some(chunk) = window.front_mut()
            && let Some(bytes) = chunk.bytes.take()
        {
            let wanted = &bytes[index(range.start, chunk.at, &bytes)..index(range.end, chunk.at, &bytes)];
            out.write_all(wanted)
                .map_err(|e| Error::new(Exit::Failed, "cannot write the output").because(&e))?;
            progress.advance(wanted.len() as u64);
            queue.free(bytes);
            window.pop_front();
            first += 1;
        }
    }
    Ok(())
}

struct Chunk {
    at: u64,
    /// None while it is on its way.
    bytes: Option<Buffer>,
}

/// Where the volume's byte `position` is in a buffer that begins at `at`, or the buffer's nearer end.
fn index(position: u64, at: u64, buffer: &[u8]) -> usize {
    length(position.saturating_sub(at).min(buffer.len() as u64))
}
