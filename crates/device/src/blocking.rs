//! A device for those who have nothing else to do: one request at a time, waited for.

use crate::{Arena, Channel, Completion, Device, Error, ErrorKind, Finished, Io, Result, Ring, Started};

/// The most that one request moves.
const MOST: usize = 1 << 20;

/// A channel and a ring of its own, for preparing a device and for looking at what is on it. Not for a request's way.
///
/// Offsets and lengths are multiples of the device's block.
pub struct Blocking {
    channel: Box<dyn Channel>,
    ring: Ring,
    arena: Arena,
    over: Vec<Finished>,
}

impl Blocking {
    /// A way to `device` for the calling thread.
    ///
    /// # Errors
    /// When the system has no ring, descriptor or memory for it.
    pub fn new(device: &dyn Device) -> Result<Self> {
        Ok(Self {
            channel: device.channel(1)?,
            ring: Ring::new(8)?,
            arena: Arena::new(MOST)?,
            over: Vec::new(),
        })
    }

    /// Fills `data` from `offset`.
    ///
    /// # Errors
    /// The device's.
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
    /// The device's.
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

    /// Everything written before is on stable storage when this returns.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self) -> Result<()> {
        self.run(Io::Flush).1
    }

    /// The bytes need not be kept.
    ///
    /// # Errors
    /// The device's.
    pub fn discard(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Io::Discard { offset, len }).1
    }

    /// The bytes read as zeros afterwards.
    ///
    /// # Errors
    /// The device's.
    pub fn zero(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Io::Zero { offset, len, punch: true }).1
    }

    fn buffer(&mut self, len: usize) -> Result<crate::Buffer> {
        // One request at a time: the whole arena is free, unless the device has kept a buffer.
        self.arena
            .alloc(len)
            .ok_or_else(|| Error::new(ErrorKind::Memory, "the request's memory did not come back"))
    }

    fn run(&mut self, io: Io) -> (Option<crate::Buffer>, Result<()>) {
        let mut started = self.channel.start(&mut self.ring, 0, io);
        loop {
            if let Started::Finished(Finished { buffer, result, .. }) = started {
                return (buffer, result);
            }
            if let Err(e) = self.ring.wait() {
                // The request's memory stays with the channel.
                return (None, Err(Error::new(ErrorKind::Ring, "cannot wait for the device").with_source(e)));
            }
            while let Some(Completion { token, result }) = self.ring.next_completion() {
                if token.as_channel().is_some() {
                    self.channel.woken(&mut self.ring, token, result, &mut self.over);
                } else {
                    self.over.extend(self.channel.finish(&mut self.ring, token, result));
                }
            }
            if let Some(done) = self.over.pop() {
                started = Started::Finished(done);
            }
        }
    }
}
