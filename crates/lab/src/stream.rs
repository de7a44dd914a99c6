//! Two streams to the same device, with the same interface.
//!
//! ```text
//!   load ---> Stream ---> Queue (a volume: segments, cipher, policy) ---> Channel ---> device
//!                \
//!                 +-----> Bare ----------------------------------------> Channel ---> device
//! ```
//! The path's cost is the difference between the second way and the first.

use std::collections::VecDeque;
use std::sync::Arc;

use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::{
    Arena, Buffer, Channel, Device, Finished, Immediate, Io, Ring, RingCompletion, Started,
};

use crate::{Error, Result};

/// A finished request.
pub(crate) struct FinishedRequest {
    pub(crate) tag: u32,
    pub(crate) result: Result<()>,
    /// The bytes that were read, or the memory of a write.
    pub(crate) buffer: Option<Buffer>,
}

impl From<underseal_datapath::Completion> for FinishedRequest {
    fn from(done: underseal_datapath::Completion) -> Self {
        // Tags are those of `read` and `write`.
        let tag = u32::try_from(done.tag).unwrap_or(u32::MAX);
        Self { tag, result: done.result.map_err(Error::from), buffer: done.buffer }
    }
}

/// A stream of one thread's requests. Tags are below the depth of the stream, and each tag is in
/// use once at a time.
pub(crate) trait RequestStream {
    /// Allocates memory for a write.
    fn alloc(&mut self, len: usize) -> Option<Buffer>;
    /// Frees memory.
    fn free(&mut self, buffer: Buffer);
    /// Starts a read. Returns false when the stream is full.
    fn read(&mut self, tag: u32, offset: u64, len: usize) -> bool;
    /// Starts a write. Returns the memory when the stream is full.
    fn write(&mut self, tag: u32, offset: u64, data: Buffer) -> Option<Buffer>;
    /// A finished request; when none is finished, this thread first does its share of the work.
    fn next(&mut self) -> Option<FinishedRequest>;
    /// A request that has already finished: work that waits for this thread remains waiting.
    fn ready(&mut self) -> Option<FinishedRequest>;
    /// Submits started requests, and collects completions.
    fn poll(&mut self) -> Result<()>;
    /// Waits for progress.
    fn wait(&mut self) -> Result<()>;
}

/// Returns a queue with room for `depth` requests of `size` bytes.
pub(crate) fn queue(mapping: &Arc<Mapping>, depth: usize, size: usize) -> Result<Queue> {
    // The queue's memory is twice the longest request: enough for all requests. A part of a sector
    // also needs the sectors at both of its ends.
    let sector = mapping.preferred_block() as usize;
    let each = if size < sector { sector * 2 } else { size };
    let max_request = each.next_power_of_two().max(4096) * depth;
    let depth = u32::try_from(depth).unwrap_or(u32::MAX);
    Ok(Queue::open(mapping.clone(), QueueOptions { depth, max_request })?)
}

impl RequestStream for Queue {
    fn alloc(&mut self, len: usize) -> Option<Buffer> {
        Queue::alloc(self, len)
    }

    fn free(&mut self, buffer: Buffer) {
        Queue::free(self, buffer);
    }

    fn read(&mut self, tag: u32, offset: u64, len: usize) -> bool {
        self.submit(tag.into(), Request::Read { offset, len }).is_ok()
    }

    fn write(&mut self, tag: u32, offset: u64, data: Buffer) -> Option<Buffer> {
        match self.submit(tag.into(), Request::Write { offset, data, durable: false }) {
            Err(Request::Write { data, .. }) => Some(data),
            _ => None,
        }
    }

    fn next(&mut self) -> Option<FinishedRequest> {
        self.next_completion().map(FinishedRequest::from)
    }

    fn ready(&mut self) -> Option<FinishedRequest> {
        self.next_ready().map(FinishedRequest::from)
    }

    fn poll(&mut self) -> Result<()> {
        Queue::poll(self).map_err(Error::system("the queue cannot hand over its requests"))
    }

    fn wait(&mut self) -> Result<()> {
        Queue::wait(self).map_err(Error::system("the queue cannot wait"))
    }
}

/// A device's channel alone.
pub(crate) struct Bare {
    channel: Box<dyn Channel>,
    ring: Ring,
    arena: Arena,
    over: Vec<Finished>,
    ready: VecDeque<FinishedRequest>,
}

impl Bare {
    /// Opens a stream for `depth` requests of `size` bytes.
    pub(crate) fn open(device: &dyn Device, depth: usize, size: usize) -> Result<Self> {
        let entries = u32::try_from(depth).unwrap_or(u32::MAX);
        Ok(Self {
            channel: device.channel(entries)?,
            ring: Ring::new(entries.saturating_add(8))?,
            arena: Arena::new(size.next_power_of_two().max(4096) * depth * 2)?,
            over: Vec::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
        })
    }

    fn done(&mut self, tag: u32, result: underseal_device::Result<()>, buffer: Option<Buffer>) {
        self.ready.push_back(FinishedRequest { tag, result: result.map_err(Error::from), buffer });
    }

    fn start(&mut self, tag: u32, io: Io) {
        if let Started::Finished(Finished { slot, buffer, result, .. }) =
            self.channel.start(&mut self.ring, tag, io)
        {
            self.done(slot, result, buffer);
        }
    }

    fn reap(&mut self) {
        while let Some(RingCompletion { token, result }) = self.ring.next_completion() {
            if token.as_channel().is_some() {
                self.channel.woken(&mut self.ring, token, result, &mut self.over);
            } else {
                self.over.extend(self.channel.finish(&mut self.ring, token, result));
            }
        }
        while let Some(Finished { slot, buffer, result, .. }) = self.over.pop() {
            self.done(slot, result, buffer);
        }
    }
}

impl RequestStream for Bare {
    fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.alloc(len)
    }

    fn free(&mut self, buffer: Buffer) {
        self.arena.free(buffer);
    }

    fn read(&mut self, tag: u32, offset: u64, len: usize) -> bool {
        let Some(mut buffer) = self.arena.alloc(len) else { return false };
        match self.channel.read_now(offset, &mut buffer) {
            Immediate::Done => self.done(tag, Ok(()), Some(buffer)),
            Immediate::Failed(e) => self.done(tag, Err(e), Some(buffer)),
            Immediate::Blocked(done) => {
                self.start(tag, Io::Read { offset: offset + done as u64, buffer, range: done..len })
            }
        }
        true
    }

    fn write(&mut self, tag: u32, offset: u64, data: Buffer) -> Option<Buffer> {
        match self.channel.write_now(offset, &data) {
            Immediate::Done => self.done(tag, Ok(()), Some(data)),
            Immediate::Failed(e) => self.done(tag, Err(e), Some(data)),
            Immediate::Blocked(done) => {
                let (offset, range) = (offset + done as u64, done..data.len());
                self.start(tag, Io::Write { offset, buffer: data, range, durable: false });
            }
        }
        None
    }

    fn next(&mut self) -> Option<FinishedRequest> {
        self.ready.pop_front()
    }

    fn ready(&mut self) -> Option<FinishedRequest> {
        self.ready.pop_front()
    }

    fn poll(&mut self) -> Result<()> {
        self.ring.submit().map_err(Error::system("the ring takes nothing"))?;
        self.reap();
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        self.ring.wait().map_err(Error::system("the ring cannot wait"))?;
        self.reap();
        Ok(())
    }
}
