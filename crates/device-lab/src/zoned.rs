//! A device whose zones must be written in sequence, like a host-managed SMR disk's.
//!
//! ```text
//!   | conventional | conventional | sequential ######--------- | sequential ---------------- |
//!     written anywhere                   only here ^             write pointer at the zone's start
//! ```
//!
//! A write to a sequential zone that does not begin at its write pointer, or leaves the zone, fails
//! with EIO and is counted. Discarding or zeroing whole zones resets their write pointers to the
//! start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use underseal_device::{
    Channel, Device, Error, ErrorKind, Extent, Finished, Geometry, Immediate, Io, IoKind, Result, Ring,
    RingToken, Started, Zones,
};

/// A device with zones.
pub struct ZonedDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    state: Arc<State>,
}

struct State {
    zones: Zones,
    size: u64,
    /// The next byte to write, by zone. Unused for conventional zones.
    pointers: Mutex<Vec<u64>>,
    violations: AtomicU64,
}

impl ZonedDevice {
    /// Zones on `inner`, all empty: it should read as zeros. `declared`: its geometry reports the
    /// zones; otherwise only failing writes reveal them.
    ///
    /// # Errors
    /// `Alignment` when a zone does not consist of whole blocks.
    pub fn new(inner: Arc<dyn Device>, zones: Zones, declared: bool) -> Result<Self> {
        let geometry = inner.geometry();
        if zones.size == 0 || !zones.size.is_multiple_of(u64::from(geometry.block)) {
            let context =
                format!("zones of {} bytes are not made of blocks of {}", zones.size, geometry.block);
            return Err(Error::new(ErrorKind::Alignment, context));
        }
        let pointers = (0..geometry.size.div_ceil(zones.size)).map(|zone| zone * zones.size).collect();
        let state = State {
            zones,
            size: geometry.size,
            pointers: Mutex::new(pointers),
            violations: AtomicU64::new(0),
        };
        let geometry = Geometry { zones: declared.then_some(zones), ..geometry };
        Ok(Self { inner, geometry, state: Arc::new(state) })
    }

    /// Returns the number of writes that did not begin at a write pointer.
    pub fn violations(&self) -> u64 {
        self.state.violations.load(Ordering::Relaxed)
    }

    /// Returns the next byte to write in a zone, or `None` for a conventional zone and beyond the
    /// last.
    pub fn write_pointer(&self, zone: usize) -> Option<u64> {
        let pointer = self.state.pointers().get(zone).copied()?;
        (zone >= self.state.zones.conventional as usize).then_some(pointer)
    }
}

impl Device for ZonedDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let (inner, state) = (self.inner.channel(depth)?, self.state.clone());
        Ok(Box::new(ZonedChannel { inner, state, changes: vec![Change::None; depth as usize] }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }
}

/// The place of a written range.
enum Place {
    /// In conventional zones, which accept all writes.
    Conventional,
    /// In one sequential zone, at its write pointer.
    InSequence { zone: usize },
    /// At a place where writes are refused.
    Violation,
}

impl State {
    fn pointers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.pointers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn zone(&self, offset: u64) -> usize {
        usize::try_from(offset / self.zones.size).unwrap_or(usize::MAX)
    }

    fn place(&self, pointers: &[u64], offset: u64, len: u64) -> Place {
        if self.is_conventional(offset, len) {
            return Place::Conventional;
        }
        let zone = self.zone(offset);
        let within = self.zone((offset + len).saturating_sub(1).max(offset)) == zone;
        if within && pointers.get(zone) == Some(&offset) {
            return Place::InSequence { zone };
        }
        self.violations.fetch_add(1, Ordering::Relaxed);
        Place::Violation
    }

    fn is_conventional(&self, offset: u64, len: u64) -> bool {
        offset + len <= u64::from(self.zones.conventional).saturating_mul(self.zones.size)
    }

    /// The first and last sequential zone of a range, if the range consists of whole sequential
    /// zones.
    fn whole(&self, offset: u64, len: u64) -> Option<(usize, usize)> {
        let (first, end) = (self.zone(offset), offset + len);
        let whole = offset.is_multiple_of(self.zones.size)
            && (end.is_multiple_of(self.zones.size) || end == self.size)
            && first >= self.zones.conventional as usize
            && len > 0;
        whole.then(|| (first, self.zone(end - 1)))
    }
}

/// The effect of a request in flight on the write pointers.
#[derive(Debug, Clone, Copy)]
enum Change {
    None,
    /// The pointer was moved already. After a failed write it returns to `offset`.
    Write {
        zone: usize,
        offset: u64,
    },
    /// The zones, from first to last, are empty after the request's success.
    Reset {
        first: usize,
        last: usize,
    },
}

struct ZonedChannel {
    inner: Box<dyn Channel>,
    state: Arc<State>,
    /// The changes, by slot.
    changes: Vec<Change>,
}

impl ZonedChannel {
    /// Determines a request's effect on the write pointers, and the device's operation; `Err` for a
    /// forbidden request.
    fn admit(&self, io: &mut Io) -> std::result::Result<Change, ()> {
        let (offset, len) = io.extent();
        let whole = self.state.whole(offset, len).map(|(first, last)| Change::Reset { first, last });
        match (io.kind(), whole) {
            (IoKind::Discard | IoKind::Zero, Some(reset)) => {
                // An empty zone reads as zeros.
                *io = Io::Zero { offset, len, punch: true };
                return Ok(reset);
            }
            (IoKind::Write | IoKind::Zero, _) => {}
            _ => return Ok(Change::None),
        }
        let mut pointers = self.state.pointers();
        match self.state.place(&pointers, offset, len) {
            Place::Conventional => Ok(Change::None),
            Place::Violation => Err(()),
            Place::InSequence { zone } => {
                pointers[zone] = offset + len;
                Ok(Change::Write { zone, offset })
            }
        }
    }

    fn over(&mut self, done: &Finished) {
        let change = std::mem::replace(&mut self.changes[done.slot as usize], Change::None);
        match (change, done.result.is_ok()) {
            // Later writes to the zone are lost as well.
            (Change::Write { zone, offset }, false) => {
                let pointer = &mut self.state.pointers()[zone];
                *pointer = offset.min(*pointer);
            }
            (Change::Reset { first, last }, true) => {
                for (zone, pointer) in self.state.pointers().iter_mut().enumerate().take(last + 1).skip(first)
                {
                    *pointer = zone as u64 * self.state.zones.size;
                }
            }
            _ => {}
        }
    }
}

fn violation(kind: IoKind, offset: u64) -> Error {
    kind.failed(offset, "not at the zone's write pointer", Errno::IO)
}

impl Channel for ZonedChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.inner.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        // The lock is held until the number of written bytes is known; immediate writes are short.
        let mut pointers = self.state.pointers();
        match self.state.place(&pointers, offset, data.len() as u64) {
            Place::Conventional => self.inner.write_now(offset, data),
            Place::Violation => Immediate::Failed(violation(IoKind::Write, offset)),
            Place::InSequence { zone } => {
                let answer = self.inner.write_now(offset, data);
                pointers[zone] += match answer {
                    Immediate::Done => data.len() as u64,
                    Immediate::Blocked(n) => n as u64,
                    Immediate::Failed(_) => 0,
                };
                answer
            }
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, mut io: Io) -> Started {
        let (kind, (offset, len)) = (io.kind(), io.extent());
        if kind == IoKind::Discard
            && !self.state.is_conventional(offset, len)
            && self.state.whole(offset, len).is_none()
        {
            // A part of a zone stays written.
            return Started::Finished(Finished::bare(slot, Ok(())));
        }
        let Ok(change) = self.admit(&mut io) else {
            let result = Err(violation(kind, offset));
            return Started::Finished(Finished::of(slot, io, result));
        };
        self.changes[slot as usize] = change;
        // This channel adds no requests to those of the channel below, so tokens pass unchanged.
        let started = self.inner.start(ring, slot, io);
        if let Started::Finished(done) = &started {
            self.over(done);
        }
        started
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let done = self.inner.finish(ring, token, result)?;
        self.over(&done);
        Some(done)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let before = over.len();
        self.inner.woken(ring, token, result, over);
        over[before..].iter().for_each(|done| self.over(done));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Fault, FaultDevice, Rule};
    use underseal_device::{Blocking, RamDevice};

    const ZONE: u64 = 64 << 10;
    const ZONES: Zones = Zones { size: ZONE, conventional: 1 };

    fn zoned() -> ZonedDevice {
        ZonedDevice::new(Arc::new(RamDevice::new(4 * ZONE)), ZONES, true).unwrap()
    }

    #[test]
    fn a_sequential_zone_is_written_at_its_pointer_only() {
        let device = zoned();
        let mut io = Blocking::new(&device).unwrap();
        let mut write = |offset, len| io.write(offset, &vec![7; len], false).is_ok();
        // offset, length, allowed
        for (offset, len, allowed) in [
            (4096, 4096, true), // conventional
            (0, 4096, true),
            (ZONE - 4096, 8192, false), // out of the conventional zone into the first sequential one
            (ZONE, 4096, true),
            (ZONE, 4096, false),        // behind the pointer
            (ZONE + 8192, 4096, false), // before it
            (ZONE + 4096, 512, true),
            (2 * ZONE, 65_536, true),
            (2 * ZONE, 512, false),        // full
            (3 * ZONE + 512, 4096, false), // not at the start of an empty one
            (ZONE + 4608, 65_536, false),  // into the next zone
            (ZONE + 4608, 60_928, true),   // up to its end
        ] {
            assert_eq!(write(offset, len), allowed, "{offset} + {len}");
        }
        assert_eq!(device.violations(), 6);
        assert_eq!(device.write_pointer(0), None);
        assert_eq!([1, 2, 3].map(|z| device.write_pointer(z).unwrap()), [2 * ZONE, 3 * ZONE, 3 * ZONE]);
    }

    #[test]
    fn discarding_a_zone_empties_it_and_a_part_does_not() {
        let device = zoned();
        let mut io = Blocking::new(&device).unwrap();
        io.write(ZONE, &[7; 8192], false).unwrap();
        io.discard(ZONE, 4096).unwrap();
        assert_eq!(device.write_pointer(1), Some(ZONE + 8192));
        assert!(io.zero(ZONE, 4096).is_err());
        io.zero(ZONE + 8192, 4096).unwrap();
        assert_eq!(device.write_pointer(1), Some(ZONE + 12_288));
        io.discard(ZONE, 2 * ZONE).unwrap();
        assert_eq!((device.write_pointer(1), device.write_pointer(2)), (Some(ZONE), Some(2 * ZONE)));
        let mut back = [1; 8192];
        io.read(ZONE, &mut back).unwrap();
        assert_eq!(back, [0; 8192]);
        io.write(ZONE, &[8; 4096], false).unwrap();
    }

    #[test]
    fn a_failed_write_leaves_the_pointer_where_it_began() {
        let faults = FaultDevice::new(Arc::new(RamDevice::new(4 * ZONE)), 1);
        let control = faults.control();
        let device = ZonedDevice::new(Arc::new(faults), ZONES, true).unwrap();
        let mut io = Blocking::new(&device).unwrap();
        io.write(ZONE, &[7; 4096], false).unwrap();
        control.add(Rule::new(Fault::EIO).on(IoKind::Write).times(1));
        assert!(io.write(ZONE + 4096, &[7; 4096], false).is_err());
        assert_eq!((device.write_pointer(1), device.violations()), (Some(ZONE + 4096), 0));
        io.write(ZONE + 4096, &[7; 4096], false).unwrap();
    }

    #[test]
    fn zones_are_declared_or_not() {
        let ram = || Arc::new(RamDevice::new(4 * ZONE));
        assert_eq!(zoned().geometry().zones, Some(ZONES));
        assert_eq!(ZonedDevice::new(ram(), ZONES, false).unwrap().geometry().zones, None);
        assert!(ZonedDevice::new(ram(), Zones { size: 0, conventional: 0 }, true).is_err());
    }

    proptest! {
        #[test]
        fn it_is_a_disk_to_those_who_keep_to_the_pointers(steps in prop::collection::vec((1usize..4, 1usize..40, 0..8), 1..80)) {
            let device = zoned();
            let mut io = Blocking::new(&device).unwrap();
            let zone_len = usize::try_from(ZONE).unwrap();
            let mut model = vec![0u8; 4 * zone_len];
            for (number, (zone, blocks, what)) in (1u32..).zip(steps) {
                let start = zone * zone_len;
                let at = usize::try_from(device.write_pointer(zone).unwrap()).unwrap();
                let len = (blocks * 512).min(start + zone_len - at);
                if what == 0 {
                    io.discard(start as u64, ZONE).unwrap();
                    model[start..start + zone_len].fill(0);
                } else if len == 0 {
                    prop_assert!(io.write(start as u64, &[1; 512], false).is_err());
                } else {
                    let fill = number.to_le_bytes()[0];
                    io.write(at as u64, &vec![fill; len], false).unwrap();
                    model[at..at + len].fill(fill);
                }
            }
            let mut now = vec![0; model.len()];
            io.read(0, &mut now).unwrap();
            prop_assert!(now == model);
        }
    }
}
