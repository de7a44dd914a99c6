//! A device with replaced sectors: those that a replay would have written.

use std::ops::Range;
use std::sync::Arc;

use underseal_device::{
    Channel, Device, Extent, Finished, Geometry, Immediate, Io, Result, Ring, RingToken, Started,
};

use crate::overlay::SectorMap;

/// Another device, with sectors in memory over its own. It takes no writes.
pub(super) struct ReplayedDevice {
    below: Arc<dyn Device>,
    sectors: Arc<SectorMap>,
}

impl ReplayedDevice {
    /// Returns the device below itself where no sector is replaced.
    pub(super) fn over(below: Arc<dyn Device>, sectors: SectorMap) -> Arc<dyn Device> {
        if sectors.is_empty() { below } else { Arc::new(Self { below, sectors: Arc::new(sectors) }) }
    }
}

impl Device for ReplayedDevice {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, discard: false, ..self.below.geometry() }
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let reads = (0..depth).map(|_| None).collect();
        Ok(Box::new(Reader { below: self.below.channel(depth)?, sectors: self.sectors.clone(), reads }))
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn below(&self) -> Vec<&dyn Device> {
        vec![&*self.below]
    }

    fn extent(&self, _offset: u64, len: u64) -> Extent {
        Extent { len, hole: false }
    }
}

struct Reader {
    below: Box<dyn Channel>,
    sectors: Arc<SectorMap>,
    /// The read of each slot: the device's offset, and the range in the buffer.
    reads: Vec<Option<(u64, Range<usize>)>>,
}

impl Reader {
    fn over(&mut self, mut done: Finished) -> Finished {
        let read = self.reads.get_mut(done.slot as usize).and_then(Option::take);
        if let (Some((offset, range)), Some(buffer), Ok(())) = (read, &mut done.buffer, &done.result) {
            self.sectors.put_over(offset, &mut buffer[range]);
        }
        done
    }
}

impl Channel for Reader {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        let now = self.below.read_now(offset, data);
        let len = match now {
            Immediate::Done => data.len(),
            Immediate::Blocked(len) => len,
            Immediate::Failed(_) => 0,
        };
        self.sectors.put_over(offset, &mut data[..len]);
        now
    }

    fn write_now(&mut self, offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Failed(refused(offset))
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        let now = self.below.read_tagged_now(offset, data, tags);
        if let Immediate::Done = now {
            self.sectors.put_over(offset, data);
        }
        now
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        if io.kind().changes() {
            let refused = refused(io.extent().0);
            return Started::Finished(Finished::of(slot, io, Err(refused)));
        }
        self.reads[slot as usize] = match &io {
            Io::Read { offset, range, .. } | Io::ReadTagged { offset, range, .. } => {
                Some((*offset, range.clone()))
            }
            _ => None,
        };
        match self.below.start(ring, slot, io) {
            Started::Finished(done) => Started::Finished(self.over(done)),
            pending @ Started::Pending => pending,
        }
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let done = self.below.finish(ring, token, result)?;
        Some(self.over(done))
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let before = over.len();
        self.below.woken(ring, token, result, over);
        let done: Vec<_> = over.drain(before..).collect();
        over.extend(done.into_iter().map(|done| self.over(done)));
    }
}

fn refused(offset: u64) -> underseal_device::Error {
    underseal_device::IoKind::Write.failed(offset, "the volume is only read", rustix::io::Errno::ROFS)
}
