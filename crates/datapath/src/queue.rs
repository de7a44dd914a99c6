//! One stream of requests, owned by one thread.

mod inline;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use underseal_device::{Arena, Buffer, Channel, Ring};

use crate::slot::{Job, Slot, Slots};
use crate::{Completion, Error, ErrorKind, Mapping, Request, Result};

/// How large a queue is.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Requests in flight at a time.
    pub depth: u32,
    /// The longest read or write, in bytes.
    pub max_request: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 128, max_request: 32 << 20 }
    }
}

/// One stream of requests: its channels, its ring, its memory, its requests in flight.
///
/// Submit until it is full, take completions, and [`wait`](Queue::wait) when there is nothing else to do.
pub struct Queue {
    mapping: Arc<Mapping>,
    /// One a lower device, by its number.
    channels: Box<[Box<dyn Channel>]>,
    ring: Ring,
    arena: Arena,
    slots: Slots,
    ready: VecDeque<Completion>,
    events: VecDeque<u32>,
    max_request: usize,
}

impl Queue {
    /// A queue for the calling thread.
    ///
    /// # Errors
    /// `Lower` when the system has no ring, descriptor or memory for it.
    pub fn open(mapping: Arc<Mapping>, options: QueueOptions) -> Result<Self> {
        let lower = |e| {
            let names: Vec<_> = mapping.devices().iter().map(|device| device.name()).collect();
            Error::lower(&names.join(", "), e)
        };
        // Completions of the lower device, and a few descriptors of the export's.
        let ring = Ring::new(options.depth + 8).map_err(lower)?;
        let channels = mapping.devices().iter().map(|device| device.channel(options.depth));
        let channels = channels.collect::<std::result::Result<_, _>>().map_err(lower)?;
        // The longest request and as much again, so one large request never waits for another.
        let arena = Arena::new(options.max_request.saturating_mul(2)).map_err(lower)?;
        Ok(Self {
            channels,
            ring,
            arena,
            slots: Slots::new(options.depth),
            ready: VecDeque::with_capacity(options.depth as usize * 2),
            events: VecDeque::with_capacity(8),
            max_request: options.max_request,
            mapping,
        })
    }

    /// Takes a request in. Its completion may be ready at once.
    ///
    /// # Errors
    /// Gives the request back when the queue has no slot or memory left: take completions, give their memory back and
    /// try again.
    pub fn submit(&mut self, tag: u64, request: Request) -> std::result::Result<(), Request> {
        if let Err(error) = self.check(&request) {
            let buffer = if let Request::Write { data, .. } = request { Some(data) } else { None };
            self.ready.push_back(Completion { tag, result: Err(error), buffer });
            return Ok(());
        }
        if self.slots.is_full() {
            return Err(request);
        }
        let (start, len) = request.range().unwrap_or((0, 0));
        let (job, then_flush, buffer) = match request {
            Request::Read { len, .. } => match self.arena.alloc(len) {
                Some(buffer) => (Job::Read, false, Some(buffer)),
                None => return Err(request),
            },
            Request::Write { data, durable, .. } => (Job::Write { durable }, false, Some(data)),
            Request::Flush => (Job::Flush { device: 0 }, false, None),
            Request::Discard { durable, .. } => (Job::Discard, durable, None),
            Request::Prefetch { .. } => (Job::Prefetch, false, None),
            Request::WriteZeroes { durable, punch, fast, .. } if self.mapping.is_null() => {
                (Job::ZeroBelow { punch, fast }, durable, None)
            }
            Request::WriteZeroes { durable, .. } => match self.zeros(len) {
                Some(buffer) => (Job::WriteZeros, durable, Some(buffer)),
                None => return Err(request),
            },
        };
        let slot = Slot { tag, job, start, at: start, end: start + len, then_flush, device: 0, buffer };
        let index = self.slots.put(slot);
        self.run(index);
        Ok(())
    }

    /// Writes the caller's scratch memory, encrypting it in place; what is in it afterwards is unspecified.
    ///
    /// The memory is free again when this returns: what cannot be written at once is copied first.
    ///
    /// # Errors
    /// `Full` as with [`submit`](Queue::submit); the memory is as it was.
    pub fn write_in_place(
        &mut self,
        tag: u64,
        offset: u64,
        data: &mut [u8],
        durable: bool,
    ) -> std::result::Result<(), Full> {
        if let Err(error) = self.check_range(offset, data.len() as u64, true) {
            self.ready.push_back(Completion { tag, result: Err(error), buffer: None });
            return Ok(());
        }
        if self.slots.is_full() {
            return Err(Full);
        }
        // Reserved before anything is encrypted, so that there is a way on if the device would block.
        let mut buffer = self.arena.alloc(data.len()).ok_or(Full)?;
        let end = offset + data.len() as u64;
        let mut at = offset;
        if !durable {
            let (reached, result) = self.write_now(offset, data);
            at = reached;
            if at == end || result.is_err() {
                self.arena.free(buffer);
                self.ready.push_back(Completion { tag, result, buffer: None });
                return Ok(());
            }
        }
        buffer.copy_from_slice(data);
        let job = Job::Write { durable };
        let index = self.slots.put(Slot {
            tag,
            job,
            start: offset,
            at,
            end,
            then_flush: false,
            device: 0,
            buffer: Some(buffer),
        });
        if durable {
            self.run(index)
        } else {
            self.start_encrypted(index)
        }
        Ok(())
    }

    /// The next request that is over.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// Memory for a write, or `None` when there is none of that size now.
    pub fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.alloc(len)
    }

    /// Takes memory back.
    ///
    /// # Panics
    /// When it is another queue's.
    pub fn free(&mut self, buffer: Buffer) {
        self.arena.free(buffer);
    }

    /// Requests that are neither completed nor failed yet.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Watches a descriptor of the export's once: [`next_event`](Queue::next_event) gives `number` when one of
    /// `events` (poll(2) bits) holds. The descriptor must stay open until then or until the queue is dropped.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> std::io::Result<()> {
        self.ring.watch(fd, events, number)
    }

    /// A watched descriptor that has become ready.
    pub fn next_event(&mut self) -> Option<u32> {
        self.events.pop_front()
    }

    /// Waits until a request in flight moves on or a watched descriptor becomes ready.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&mut self) -> std::io::Result<()> {
        self.ring.wait()?;
        self.reap();
        Ok(())
    }

    /// Hands over to the kernel what was started, and takes what has come back, without waiting.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn poll(&mut self) -> std::io::Result<()> {
        self.ring.submit()?;
        self.reap();
        Ok(())
    }

    fn reap(&mut self) {
        while let Some(completion) = self.ring.next_completion() {
            let Some(index) = completion.token.as_lower() else {
                self.events.extend(completion.token.as_event());
                continue;
            };
            let channel = &mut self.channels[self.slots.get(index).device];
            if let Some(done) = channel.finish(&mut self.ring, completion.token, completion.result) {
                self.finished(done);
            }
        }
    }

    fn check(&self, request: &Request) -> Result<()> {
        let Some((offset, len)) = request.range() else { return Ok(()) };
        self.check_range(offset, len, request.writes())?;
        if let Request::WriteZeroes { fast: true, .. } = request
            && !self.mapping.is_null()
        {
            let context = "zeros under a cipher must be encrypted: not faster than a write";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let moves = matches!(request, Request::Read { .. } | Request::Write { .. });
        if moves && len > self.max_request as u64 {
            let context = format!("a request of {len} bytes is longer than {}", self.max_request);
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        Ok(())
    }

    fn check_range(&self, offset: u64, len: u64, writes: bool) -> Result<()> {
        let block = u64::from(self.mapping.block());
        let fail = |kind, what: &str| Err(Error::new(kind, format!("bytes {offset} + {len}: {what}")));
        if writes && self.mapping.read_only() {
            return fail(ErrorKind::ReadOnly, "the volume is read-only");
        }
        if offset.checked_add(len).is_none_or(|end| end > self.mapping.size()) {
            return fail(ErrorKind::OutOfRange, &format!("the volume ends at {}", self.mapping.size()));
        }
        if len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return fail(ErrorKind::Misaligned, &format!("not on blocks of {block} bytes"));
        }
        Ok(())
    }
}

/// The queue has no slot or memory left for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Drop for Queue {
    /// Waits for what the lower device has, so that nothing writes to memory that is gone.
    fn drop(&mut self) {
        while self.slots.in_flight() > 0 && self.wait().is_ok() {}
    }
}
