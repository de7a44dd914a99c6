//! A device for callers that wait for each request, or for several writes together.

use std::sync::{Mutex, PoisonError};

use crate::{Arena, Channel, Device, Error, ErrorKind, Finished, Io, Result, Ring, RingCompletion, Started};

/// The longest request, in bytes.
const MOST: usize = 1 << 20;
/// The shortest request of writes that run together, where there is enough data.
const PART: usize = 128 << 10;

/// A ring for [`flush`], for a time when no other can be made.
static SPARE: Mutex<Option<Ring>> = Mutex::new(None);

/// Keeps a ring for [`flush`], before this process loses the means to make rings itself.
///
/// # Errors
/// As [`Ring::new`].
pub fn keep_ring_for_flushes() -> Result<()> {
    let ring = Ring::passed_on(8)?;
    *SPARE.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring);
    Ok(())
}

/// Flushes a device on a separate channel, past all others.
///
/// # Errors
/// The device's; `Ring` when no ring is available.
pub fn flush(device: &dyn Device) -> Result<()> {
    let unmade = match Ring::new(8) {
        Ok(ring) => return Blocking::with(device, ring, 1)?.flush(),
        Err(e) => e,
    };
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut way = Blocking::with(device, spare.take().ok_or(unmade)?, 1)?;
    let flushed = way.flush();
    if !way.astray {
        *spare = Some(way.ring);
    }
    flushed
}

/// A separate channel and ring, for preparing a device and for inspecting its contents; not for
/// clients' requests.
///
/// Offsets and lengths are multiples of the device's block.
pub struct Blocking {
    channel: Box<dyn Channel>,
    ring: Ring,
    arena: Arena,
    over: Vec<Finished>,
    /// Unused slots.
    free: Vec<u32>,
    depth: usize,
    /// A wait failed: the next completion cannot be assigned to a request.
    astray: bool,
    /// The device's block.
    block: usize,
}

impl Blocking {
    /// Opens a channel to `device` for the calling thread.
    ///
    /// # Errors
    /// When the system has no ring, descriptor or memory for it.
    pub fn new(device: &dyn Device) -> Result<Self> {
        Self::with(device, Ring::new(8)?, 1)
    }

    /// As [`Blocking::new`], for up to `depth` [writes](Self::write_all) at a time.
    ///
    /// # Errors
    /// As [`Blocking::new`].
    pub fn deep(device: &dyn Device, depth: u32) -> Result<Self> {
        Self::with(device, Ring::new(depth.max(1) + 7)?, depth.max(1))
    }

    /// As [`Blocking::new`], for threads that use the channel one after the other.
    ///
    /// # Errors
    /// As [`Blocking::new`].
    pub fn passed_on(device: &dyn Device) -> Result<Self> {
        Self::with(device, Ring::passed_on(8)?, 1)
    }

    fn with(device: &dyn Device, ring: Ring, depth: u32) -> Result<Self> {
        Ok(Self {
            channel: device.channel(depth)?,
            ring,
            arena: Arena::new(MOST)?,
            over: Vec::new(),
            free: (0..depth).collect(),
            depth: depth as usize,
            astray: false,
            block: device.geometry().block as usize,
        })
    }

    /// Fills `data` from `offset`.
    ///
    /// # Errors
    /// `Read`, with the lower device's error.
    pub fn read(&mut self, mut offset: u64, data: &mut [u8]) -> Result<()> {
        for part in data.chunks_mut(MOST) {
            let buffer = self.buffer(part.len())?;
            let (buffer, result) = self.run(Io::Read { offset, buffer, range: 0..part.len() });
            if let Some(buffer) = buffer {
                part.copy_from_slice(&buffer[..part.len()]);
                self.arena.free(buffer);
            }
            result?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Writes `data` to `offset`; `durable`: it is on stable storage when this returns.
    ///
    /// # Errors
    /// `Write`, with the lower device's error.
    pub fn write(&mut self, mut offset: u64, data: &[u8], durable: bool) -> Result<()> {
        for part in data.chunks(MOST) {
            let mut buffer = self.buffer(part.len())?;
            buffer.copy_from_slice(part);
            let (buffer, result) = self.run(Io::Write { offset, buffer, range: 0..part.len(), durable });
            buffer.into_iter().for_each(|b| self.arena.free(b));
            result?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Reads blocks and their tuples, in runs that fit into a request's memory.
    ///
    /// # Errors
    /// `Read`, with the lower device's error.
    pub fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> Result<()> {
        let (run, of_run) = self.tagged_run(data.len(), tuples.len());
        let parts = data.chunks_mut(run).zip(tuples.chunks_mut(of_run));
        for (at, (part, of_part)) in (offset..).step_by(run).zip(parts) {
            let (buffer, tags) = (self.buffer(part.len())?, self.buffer(of_part.len())?);
            let io = Io::ReadTagged { offset: at, buffer, range: 0..part.len(), tags };
            let Finished { buffer, tags, result, .. } = self.run_to_end(io)?;
            for (buffer, to) in [(buffer, part), (tags, of_part)] {
                let Some(buffer) = buffer else { continue };
                to.copy_from_slice(&buffer[..to.len()]);
                self.arena.free(buffer);
            }
            result?;
        }
        Ok(())
    }

    /// Writes blocks with their tuples; `durable`: they are on stable storage when this returns.
    ///
    /// # Errors
    /// `Write`, with the lower device's error.
    pub fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8], durable: bool) -> Result<()> {
        let (run, of_run) = self.tagged_run(data.len(), tuples.len());
        for (at, (part, of_part)) in (offset..).step_by(run).zip(data.chunks(run).zip(tuples.chunks(of_run)))
        {
            let (mut buffer, mut tags) = (self.buffer(part.len())?, self.buffer(of_part.len())?);
            buffer.copy_from_slice(part);
            tags.copy_from_slice(of_part);
            let io = Io::WriteTagged { offset: at, buffer, range: 0..part.len(), tags, durable };
            let Finished { buffer, tags, result, .. } = self.run_to_end(io)?;
            [buffer, tags].into_iter().flatten().for_each(|buffer| self.arena.free(buffer));
            result?;
        }
        Ok(())
    }

    /// The bytes of a run of whole blocks, and of its tuples.
    fn tagged_run(&self, len: usize, tuples: usize) -> (usize, usize) {
        const RUN: usize = MOST / 4;
        let blocks = (len / self.block).max(1);
        let (tuple, most) = ((tuples / blocks).max(1), (RUN / self.block).max(1));
        let n = most.min((RUN / tuple).max(1));
        (n * self.block, n * tuple)
    }

    /// Puts all earlier writes on stable storage.
    ///
    /// # Errors
    /// `Flush`, with the lower device's error.
    pub fn flush(&mut self) -> Result<()> {
        self.run(Io::Flush).1
    }

    /// Discards bytes, which need not be kept.
    ///
    /// # Errors
    /// `Other`, with the lower device's error.
    pub fn discard(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Io::Discard { offset, len }).1
    }

    /// Zeroes bytes.
    ///
    /// # Errors
    /// `Other`, with the lower device's error.
    pub fn zero(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Io::Zero { offset, len, punch: true }).1
    }

    fn buffer(&mut self, len: usize) -> Result<crate::Buffer> {
        // Only one request runs: the whole arena is free, unless the device has kept a buffer.
        self.arena.alloc(len).ok_or_else(lost)
    }

    fn run(&mut self, io: Io) -> (Option<crate::Buffer>, Result<()>) {
        match self.run_to_end(io) {
            Ok(Finished { buffer, result, .. }) => (buffer, result),
            Err(e) => (None, Err(e)),
        }
    }

    /// Waits for a request and returns it. On an error the wait failed, and the memory stays with
    /// the channel.
    fn run_to_end(&mut self, io: Io) -> Result<Finished> {
        if self.begin(io)? {
            self.wait()?;
        }
        self.over.pop().ok_or_else(lost)
    }

    /// Starts a request. True: the caller has to wait for it; false: the request is over already.
    fn begin(&mut self, io: Io) -> Result<bool> {
        if self.astray {
            return Err(Error::new(ErrorKind::Ring, "an earlier wait for the device failed"));
        }
        let slot = self.free.pop().ok_or_else(lost)?;
        match self.channel.start(&mut self.ring, slot, io) {
            Started::Finished(done) => {
                self.free.push(slot);
                self.over.push(done);
                Ok(false)
            }
            Started::Pending => Ok(true),
        }
    }

    /// Waits until one or more requests are over.
    fn wait(&mut self) -> Result<()> {
        while self.over.is_empty() {
            if let Err(e) = self.ring.wait() {
                self.astray = true;
                return Err(Error::new(ErrorKind::Ring, "cannot wait for the device").with_source(e));
            }
            while let Some(RingCompletion { token, result }) = self.ring.next_completion() {
                let before = self.over.len();
                if token.as_channel().is_some() {
                    self.channel.woken(&mut self.ring, token, result, &mut self.over);
                } else {
                    self.over.extend(self.channel.finish(&mut self.ring, token, result));
                }
                self.free.extend(self.over[before..].iter().map(|done| done.slot));
            }
        }
        Ok(())
    }

    /// Writes each part to its offset, as many at a time as the channel's depth, in any order.
    /// After an error some parts may not be written.
    ///
    /// # Errors
    /// The lower device's first error.
    pub fn write_all<'d>(&mut self, parts: impl IntoIterator<Item = (u64, &'d [u8])>) -> Result<()> {
        let each = (MOST / self.depth.next_power_of_two()).max(PART);
        let pieces =
            parts.into_iter().flat_map(|(offset, part)| (offset..).step_by(each).zip(part.chunks(each)));
        let mut written = Ok(());
        for (offset, piece) in pieces {
            let buffer = loop {
                let buffer = if self.free.is_empty() { None } else { self.arena.alloc(piece.len()) };
                if buffer.is_some() || self.free.len() == self.depth {
                    break buffer;
                }
                self.settle(&mut written)?;
            };
            if written.is_err() {
                buffer.into_iter().for_each(|buffer| self.arena.free(buffer));
                break;
            }
            let mut buffer = buffer.ok_or_else(lost)?;
            buffer.copy_from_slice(piece);
            let io = Io::Write { offset, buffer, range: 0..piece.len(), durable: false };
            if !self.begin(io)? {
                self.settle(&mut written)?;
            }
        }
        while self.free.len() < self.depth {
            self.settle(&mut written)?;
        }
        written
    }

    /// Waits for requests and takes them. Keeps the first failure.
    fn settle(&mut self, written: &mut Result<()>) -> Result<()> {
        self.wait()?;
        for Finished { buffer, result, .. } in self.over.drain(..) {
            buffer.into_iter().for_each(|buffer| self.arena.free(buffer));
            if written.is_ok() {
                *written = result;
            }
        }
        Ok(())
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Memory, "the request's memory did not come back")
}
