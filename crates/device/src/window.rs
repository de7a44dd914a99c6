//! A run of another device as a device.

use std::sync::Arc;

use crate::{
    Channel, Device, Error, ErrorKind, Extent, Finished, Geometry, Immediate, Io, LowerToken, Result, Ring,
    RingToken, Started, TagCheck,
};

/// A run of another device, with a fixed length.
pub struct WindowDevice {
    inner: Arc<dyn Device>,
    start: u64,
    len: u64,
}

impl WindowDevice {
    /// Makes a device of the `len` bytes of `inner` from byte `start` on.
    ///
    /// # Errors
    /// `Alignment` for a run beyond the device's end, or not of whole blocks, and for a device with
    /// zones.
    pub fn new(inner: Arc<dyn Device>, start: u64, len: u64) -> Result<Self> {
        let of = inner.geometry();
        let fits = start.checked_add(len).is_some_and(|end| end <= of.size);
        let block = u64::from(of.block);
        if !fits || of.zones.is_some() || !start.is_multiple_of(block) || !len.is_multiple_of(block) {
            let what = format!("{}: {len} bytes from byte {start} on are no device", inner.name());
            return Err(Error::new(ErrorKind::Alignment, what));
        }
        Ok(Self { inner, start, len })
    }
}

impl Device for WindowDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.len, ..self.inner.geometry() }
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(WindowChannel { inner: self.inner.channel(depth)?, start: self.start }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn below(&self) -> Vec<&dyn Device> {
        vec![&*self.inner]
    }

    /// Reads of the run are compared where those of the whole are.
    fn tag_check(&self) -> Option<&dyn TagCheck> {
        self.inner.tag_check()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(self.start + offset, len)
    }
}

struct WindowChannel {
    inner: Box<dyn Channel>,
    start: u64,
}

impl Channel for WindowChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.inner.read_now(self.start + offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.inner.write_now(self.start + offset, data)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        self.inner.read_tagged_now(self.start + offset, data, tags)
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        self.inner.write_tagged_now(self.start + offset, data, tags)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, mut io: Io) -> Started {
        match &mut io {
            Io::Read { offset, .. }
            | Io::Write { offset, .. }
            | Io::ReadTagged { offset, .. }
            | Io::WriteTagged { offset, .. }
            | Io::Discard { offset, .. }
            | Io::Zero { offset, .. }
            | Io::Prefetch { offset, .. } => *offset += self.start,
            Io::Flush => {}
        }
        ring.nested(LowerToken::ONLY, |ring| self.inner.start(ring, slot, io))
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let below = token.below(0)?;
        ring.nested(LowerToken::ONLY, |ring| self.inner.finish(ring, below, result))
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let Some((_, below)) = token.fork(1) else { return };
        ring.nested(LowerToken::ONLY, |ring| self.inner.woken(ring, below, result, over));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, RamDevice};

    #[test]
    fn a_window_reads_and_writes_its_run_alone() {
        let below: Arc<dyn Device> = Arc::new(RamDevice::new(64 << 10));
        let window = WindowDevice::new(below.clone(), 8192, 4096).unwrap();
        assert_eq!(window.geometry().size, 4096);
        Blocking::new(&window).unwrap().write(1024, &[7; 512], false).unwrap();
        let mut on = vec![0; 64 << 10];
        Blocking::new(&*below).unwrap().read(0, &mut on).unwrap();
        assert!(on.iter().enumerate().all(|(at, byte)| (*byte == 7) == (9216..9728).contains(&at)));
        let mut back = [0; 512];
        Blocking::new(&window).unwrap().read(1024, &mut back).unwrap();
        assert_eq!(back, [7; 512]);
    }

    #[test]
    fn a_run_that_leaves_its_device_is_refused() {
        let below: Arc<dyn Device> = Arc::new(RamDevice::new(4096));
        for (start, len) in [(0, 4097), (4096, 1), (u64::MAX, 1)] {
            assert!(WindowDevice::new(below.clone(), start, len).is_err(), "{start} {len}");
        }
    }
}
