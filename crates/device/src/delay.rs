//! A device with delays, like dm-delay, for tests of programs that wait. Delays can be ended: what
//! waits is sent soon then, and further requests at once.
//!
//! ```text
//!   read   -> (its delay) -> members[0]        two of the three may have the same member
//!   write  -> (its delay) -> members[1]
//!   flush  -> (its delay) -> members[2]
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::{
    Channel, Device, Error, ErrorKind, Finished, Geometry, Immediate, Io, IoKind, LowerToken, Result, Ring,
    RingToken, Started, monotonic,
};

/// The longest time after which a waiting request notices that delays have ended.
const LOOK: Duration = Duration::from_millis(100);

/// The device of one kind of requests, and its delay.
#[derive(Clone)]
pub struct Delayed {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The time that a request waits before it reaches the device.
    pub delay: Duration,
}

/// Devices behind a delay for reads, one for writes and one for flushes.
pub struct DelayDevice {
    /// The devices of reads, writes and flushes.
    members: [Delayed; 3],
    geometry: Geometry,
    is_delaying: Arc<AtomicBool>,
}

impl DelayDevice {
    /// Makes a device from those of reads, of writes (and discards) and of flushes.
    ///
    /// # Errors
    /// `Alignment` when a device has zones or tuples.
    pub fn new(reads: Delayed, writes: Delayed, flushes: Delayed) -> Result<Self> {
        let members = [reads, writes, flushes];
        let all = members.each_ref().map(|member| member.device.geometry());
        if all.iter().any(|of| of.zones.is_some() || of.tag_size > 0) {
            return Err(Error::new(ErrorKind::Alignment, "a delay's devices have neither zones nor tags"));
        }
        let largest = |of: fn(&Geometry) -> u32| all.iter().map(of).max().unwrap_or(1);
        let geometry = Geometry {
            size: all[0].size.min(all[1].size),
            block: largest(|of| of.block),
            preferred_block: largest(|of| of.preferred_block),
            memory_alignment: largest(|of| of.memory_alignment),
            read_only: all[1].read_only,
            discard: all[1].discard,
            zones: None,
            tag_size: 0,
        };
        Ok(Self { members, geometry, is_delaying: Arc::new(AtomicBool::new(true)) })
    }

    /// Delays requests from now on, as a new device does, or no longer.
    pub fn delay(&self, is_delaying: bool) {
        self.is_delaying.store(is_delaying, Ordering::Relaxed);
    }
}

impl Device for DelayDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let [reads, writes, flushes] = &self.members;
        let channel = |member: &Delayed| member.device.channel(depth);
        Ok(Box::new(DelayChannel {
            members: [channel(reads)?, channel(writes)?, channel(flushes)?],
            delays: self.members.each_ref().map(|member| member.delay),
            is_delaying: self.is_delaying.clone(),
            waiting: (0..depth).map(|_| Waiting::Free).collect(),
        }))
    }

    fn name(&self) -> &str {
        self.members[0].device.name()
    }

    fn below(&self) -> Vec<&dyn Device> {
        self.members.iter().map(|member| &*member.device).collect()
    }
}

/// The state of a slot.
enum Waiting {
    Free,
    /// The request waits for its time, on the clock of [`monotonic`].
    Time(Io, Duration),
    /// The member with this number has the request.
    Member(usize),
}

struct DelayChannel {
    members: [Box<dyn Channel>; 3],
    delays: [Duration; 3],
    is_delaying: Arc<AtomicBool>,
    waiting: Vec<Waiting>,
}

/// The number of the member for a kind of requests.
fn member_of(kind: IoKind) -> usize {
    match kind {
        IoKind::Read | IoKind::Prefetch => 0,
        IoKind::Write | IoKind::Discard | IoKind::Zero => 1,
        IoKind::Flush => 2,
    }
}

impl DelayChannel {
    /// The present delay for a member's requests.
    fn delay(&self, member: usize) -> Duration {
        if self.is_delaying.load(Ordering::Relaxed) { self.delays[member] } else { Duration::ZERO }
    }

    /// Has a request wait until it is due, or look again before. Returns it when it has failed.
    fn wait(&mut self, ring: &mut Ring, slot: u32, io: Io, due: Duration) -> Option<Finished> {
        if let Err(e) = ring.timeout(RingToken::lower(slot), due.min(monotonic() + LOOK)) {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::BUSY);
            let error = io.kind().failed(io.extent().0, "the ring takes no timeout", errno);
            return Some(Finished::of(slot, io, Err(error)));
        }
        self.waiting[slot as usize] = Waiting::Time(io, due);
        None
    }

    /// Starts a request on its member.
    fn pass_on(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Option<Finished> {
        let number = member_of(io.kind());
        let member = &mut self.members[number];
        let started = ring.nested(LowerToken::new(0, number, 3), |ring| member.start(ring, slot, io));
        match started {
            Started::Finished(done) => Some(done),
            Started::Pending => {
                self.waiting[slot as usize] = Waiting::Member(number);
                None
            }
        }
    }
}

impl Channel for DelayChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        if self.delay(0).is_zero() { self.members[0].read_now(offset, data) } else { Immediate::Blocked(0) }
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        if self.delay(1).is_zero() { self.members[1].write_now(offset, data) } else { Immediate::Blocked(0) }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Err(refused) => return Started::Finished(refused),
            Ok(io) => io,
        };
        let delay = self.delay(member_of(io.kind()));
        if delay.is_zero() {
            return self.pass_on(ring, slot, io).map_or(Started::Pending, Started::Finished);
        }
        self.wait(ring, slot, io, monotonic() + delay).map_or(Started::Pending, Started::Finished)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let Some(below) = token.below(0) else {
            // The delay of a request is over, or it is time to look.
            let slot = token.as_lower()?;
            let waiting = self.waiting.get_mut(slot as usize)?;
            return match std::mem::replace(waiting, Waiting::Free) {
                Waiting::Time(io, due) => {
                    let goes_on = self.is_delaying.load(Ordering::Relaxed) && monotonic() < due;
                    if goes_on { self.wait(ring, slot, io, due) } else { self.pass_on(ring, slot, io) }
                }
                other => {
                    *waiting = other;
                    None
                }
            };
        };
        let Some(Waiting::Member(number)) = self.waiting.get(below.as_lower()? as usize) else { return None };
        let number = *number;
        let member = &mut self.members[number];
        ring.nested(LowerToken::new(0, number, 3), |ring| member.finish(ring, below, result))
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        let Some((number, below)) = token.fork(3) else { return };
        let Some(member) = self.members.get_mut(number) else { return };
        ring.nested(LowerToken::new(0, number, 3), |ring| member.woken(ring, below, result, over));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Blocking, RamDevice};

    #[test]
    fn each_kind_of_request_has_its_own_device_and_delay() {
        let [from, to]: [Arc<dyn Device>; 2] = [(); 2].map(|()| Arc::new(RamDevice::new(8192)) as _);
        let delayed = |device: &Arc<dyn Device>, ms| Delayed {
            device: device.clone(),
            delay: Duration::from_millis(ms),
        };
        let device = DelayDevice::new(delayed(&from, 0), delayed(&to, 60), delayed(&to, 30)).unwrap();
        let mut way = Blocking::new(&device).unwrap();
        let took = |act: &mut dyn FnMut()| {
            let begin = Instant::now();
            act();
            begin.elapsed()
        };
        let mut read = [1; 4096];
        took(&mut || way.read(0, &mut read).unwrap());
        assert_eq!(read, [0; 4096]);
        assert!(took(&mut || way.write(0, &[7; 4096], false).unwrap()) >= Duration::from_millis(60));
        assert!(took(&mut || way.flush().unwrap()) >= Duration::from_millis(30));
        Blocking::new(&*to).unwrap().read(0, &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
        Blocking::new(&*from).unwrap().read(0, &mut read).unwrap();
        assert_eq!(read, [0; 4096]);
    }

    #[test]
    fn what_waits_is_sent_when_delays_end() {
        let ram: Arc<dyn Device> = Arc::new(RamDevice::new(8192));
        let [none, hour] =
            [0, 3600].map(|secs| Delayed { device: ram.clone(), delay: Duration::from_secs(secs) });
        let device = DelayDevice::new(none, hour.clone(), hour).unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| {
                let mut way = Blocking::new(&device).unwrap();
                way.write(0, &[7; 4096], false).unwrap();
            });
            std::thread::sleep(2 * LOOK);
            assert!(!writes.is_finished());
            device.delay(false);
            writes.join().unwrap();
        });
        let mut way = Blocking::new(&device).unwrap();
        way.write(4096, &[8; 4096], false).unwrap();
        way.flush().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60));
        let mut read = [0; 8192];
        way.read(0, &mut read).unwrap();
        assert_eq!(read, [[7; 4096], [8; 4096]].concat()[..]);
    }
}
