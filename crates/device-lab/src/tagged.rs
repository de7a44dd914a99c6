//! A disk that was formatted with metadata: it keeps a tuple, in memory, beside each block of
//! another device.
//!
//! A write's tuples are stored when its bytes are. A write that fails in between leaves old tuples
//! beside new bytes, unlike real disks of this kind, and like disks that are modelled by two
//! regions.

use std::sync::Arc;

use underseal_device::{
    Buffer, Channel, Device, Extent, Finished, Geometry, Immediate, Io, RamDevice, Result, Ring, RingToken,
    Started,
};

/// A device whose blocks have tuples.
pub struct TaggedDevice {
    inner: Arc<dyn Device>,
    tuples: Arc<RamDevice>,
    block: u32,
    tag_size: u32,
}

impl TaggedDevice {
    /// Keeps `tag_size` bytes beside each `block` bytes of `inner`, zeros at first.
    pub fn new(inner: Arc<dyn Device>, block: u32, tag_size: u32) -> Self {
        let blocks = inner.geometry().size / u64::from(block);
        let tuples = Arc::new(RamDevice::new(blocks * u64::from(tag_size)));
        Self { inner, tuples, block, tag_size }
    }

    /// Returns such a device in memory.
    pub fn in_memory(size: u64, block: u32, tag_size: u32) -> Self {
        Self::new(Arc::new(RamDevice::new(size)), block, tag_size)
    }

    /// The tuples, one after the other, for tests that read or corrupt them.
    pub fn tuples(&self) -> Arc<RamDevice> {
        self.tuples.clone()
    }
}

impl Device for TaggedDevice {
    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        let size = inner.size / u64::from(self.block) * u64::from(self.block);
        let (block, preferred_block) = (inner.block.max(self.block), inner.preferred_block.max(self.block));
        // Discarded blocks still have tuples.
        Geometry { size, block, preferred_block, discard: false, tag_size: self.tag_size, ..inner }
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(TaggedChannel {
            inner: self.inner.channel(depth)?,
            tuples: self.tuples.channel(depth)?,
            block: self.block.into(),
            tag_size: self.tag_size.into(),
            flights: (0..depth).map(|_| None).collect(),
        }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }
}

struct TaggedChannel {
    inner: Box<dyn Channel>,
    tuples: Box<dyn Channel>,
    block: u64,
    tag_size: u64,
    flights: Vec<Option<Flight>>,
}

/// The state of a request with tuples while the bytes are with the device below.
struct Flight {
    tags: Buffer,
    offset: u64,
    len: u64,
    reads: bool,
}

impl TaggedChannel {
    /// Returns the place and the length of the tuples of some bytes.
    fn place(&self, offset: u64, len: u64) -> (u64, usize) {
        let bytes = len / self.block * self.tag_size;
        (offset / self.block * self.tag_size, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Transfers a request's tuples after its bytes.
    fn over(&mut self, mut done: Finished) -> Finished {
        let Some(flight) = self.flights[done.slot as usize].take() else { return done };
        let (at, len) = self.place(flight.offset, flight.len);
        let mut tags = flight.tags;
        if done.result.is_ok() {
            match flight.reads {
                true => self.tuples.read_now(at, &mut tags[..len]),
                false => self.tuples.write_now(at, &tags[..len]),
            };
        }
        done.tags = Some(tags);
        done
    }
}

impl Channel for TaggedChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.inner.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.inner.write_now(offset, data)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        match self.inner.read_now(offset, data) {
            Immediate::Done => self.tuples.read_now(self.place(offset, 0).0, tags),
            Immediate::Blocked(_) => Immediate::Blocked(0),
            failed @ Immediate::Failed(_) => failed,
        }
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        match self.inner.write_now(offset, data) {
            Immediate::Done => self.tuples.write_now(self.place(offset, 0).0, tags),
            Immediate::Blocked(_) => Immediate::Blocked(0),
            failed @ Immediate::Failed(_) => failed,
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let (offset, len) = io.extent();
        let io = match io {
            Io::ReadTagged { offset, buffer, range, tags } => {
                self.flights[slot as usize] = Some(Flight { tags, offset, len, reads: true });
                Io::Read { offset, buffer, range }
            }
            Io::WriteTagged { buffer, range, tags, durable, .. } => {
                self.flights[slot as usize] = Some(Flight { tags, offset, len, reads: false });
                Io::Write { offset, buffer, range, durable }
            }
            io => io,
        };
        // This channel adds no requests to those of the channel below, so tokens pass unchanged.
        match self.inner.start(ring, slot, io) {
            Started::Finished(done) => Started::Finished(self.over(done)),
            Started::Pending => Started::Pending,
        }
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let done = self.inner.finish(ring, token, result)?;
        Some(self.over(done))
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let before = over.len();
        self.inner.woken(ring, token, result, over);
        for done in over.split_off(before) {
            let done = self.over(done);
            over.push(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underseal_device::Arena;

    #[test]
    fn tuples_come_and_go_with_their_blocks() {
        let device = TaggedDevice::in_memory(1 << 20, 4096, 20);
        let mut channel = device.channel(1).unwrap();
        let tags: Vec<u8> = (1..=40).collect();
        assert!(matches!(channel.write_tagged_now(8192, &[7; 8192], &tags), Immediate::Done));
        let (mut ring, mut arena) = (Ring::new(2).unwrap(), Arena::new(1 << 20).unwrap());
        let [buffer, tags] = [16384, 80].map(|len| arena.alloc(len).unwrap());
        let io = Io::ReadTagged { offset: 4096, buffer, range: 0..12288, tags };
        let Started::Finished(done) = channel.start(&mut ring, 0, io) else {
            panic!("memory waits for nothing")
        };
        done.result.unwrap();
        assert_eq!(done.buffer.unwrap()[..12288], [[0; 4096], [7; 4096], [7; 4096]].concat());
        let tags = done.tags.unwrap();
        assert_eq!((&tags[..20], &tags[20..60]), (&[0; 20][..], &(1..=40).collect::<Vec<u8>>()[..]));
        assert_eq!((device.geometry().tags_of(8192), device.geometry().block), (40, 4096));
    }

    #[test]
    fn a_device_without_tuples_says_so() {
        let ram = RamDevice::new(1 << 20);
        let mut channel = ram.channel(1).unwrap();
        assert!(matches!(channel.read_tagged_now(0, &mut [0; 512], &mut [0; 8]), Immediate::Failed(_)));
        let (mut ring, mut arena) = (Ring::new(2).unwrap(), Arena::new(1 << 20).unwrap());
        let [buffer, tags] = [4096, 8].map(|len| arena.alloc(len).unwrap());
        let io = Io::WriteTagged { offset: 0, buffer, range: 0..4096, tags, durable: true };
        let Started::Finished(done) = channel.start(&mut ring, 0, io) else { panic!("it is refused") };
        assert_eq!(done.result.unwrap_err().errno(), Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()));
        assert!(done.buffer.is_some() && done.tags.is_some(), "what it was given comes back");
    }
}
