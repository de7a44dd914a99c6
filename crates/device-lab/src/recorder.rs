//! Records a device's requests, and the order in which they begin and end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underseal_device::{
    Channel, Device, Extent, Finished, Geometry, Immediate, Io, IoKind, Result, Ring, RingToken, Started,
};

/// A device that records its requests.
pub struct RecorderDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
    channels: AtomicU32,
}

/// A recorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The time of its beginning, since the creation of the device.
    pub time: Duration,
    /// The request's kind.
    pub kind: IoKind,
    /// The offset; 0 for a flush.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// Whether the request must be on stable storage when it ends.
    pub durable: bool,
    /// The number of its channel, in the order of opening.
    pub channel: u32,
    /// The request's place in the order of all beginnings and ends.
    pub started: u64,
    /// The place of the request's end in the same order, and whether it succeeded; `None` when it
    /// had not ended.
    pub finished: Option<(u64, bool)>,
}

struct Shared {
    opened: Instant,
    log: Mutex<Log>,
}

struct Log {
    records: Vec<Record>,
    limit: usize,
    dropped: u64,
    sequence: u64,
    /// How often the log was taken: a request that ends later is missing in every log.
    taken: u64,
}

/// The place of a request's record: the log's number and the index.
type Place = Option<(u64, usize)>;

impl RecorderDevice {
    /// Records the first `limit` requests to `inner`. Memory for them is reserved now.
    pub fn new(inner: Arc<dyn Device>, limit: usize) -> Self {
        let log = Log { records: Vec::with_capacity(limit), limit, dropped: 0, sequence: 0, taken: 0 };
        let shared = Arc::new(Shared { opened: Instant::now(), log: Mutex::new(log) });
        Self { inner, shared, channels: AtomicU32::new(0) }
    }

    /// Takes the records, in the order of beginning, and starts a new list.
    pub fn take(&self) -> Vec<Record> {
        let mut log = self.shared.log();
        let limit = log.limit;
        log.taken += 1;
        log.dropped = 0;
        std::mem::replace(&mut log.records, Vec::with_capacity(limit))
    }

    /// Returns the number of requests that found the log full since it was last taken.
    pub fn dropped(&self) -> u64 {
        self.shared.log().dropped
    }
}

impl Device for RecorderDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refresh(&self) -> Result<u64> {
        self.inner.refresh()
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(RecorderChannel {
            inner: self.inner.channel(depth)?,
            shared: self.shared.clone(),
            number: self.channels.fetch_add(1, Ordering::Relaxed),
            places: vec![None; depth as usize],
        }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, channel: u32, kind: IoKind, (offset, len): (u64, u64), durable: bool) -> Place {
        let time = self.opened.elapsed();
        let mut log = self.log();
        log.sequence += 1;
        if log.records.len() == log.limit {
            log.dropped += 1;
            return None;
        }
        let started = log.sequence;
        log.records.push(Record { time, kind, offset, len, durable, channel, started, finished: None });
        Some((log.taken, log.records.len() - 1))
    }

    fn end(&self, place: Place, ok: bool) {
        let mut log = self.log();
        log.sequence += 1;
        let (sequence, taken) = (log.sequence, log.taken);
        if let Some((of, index)) = place
            && of == taken
        {
            log.records[index].finished = Some((sequence, ok));
        }
    }
}

struct RecorderChannel {
    inner: Box<dyn Channel>,
    shared: Arc<Shared>,
    number: u32,
    places: Vec<Place>,
}

impl RecorderChannel {
    /// Records bytes that were done at once; the rest comes again as a request.
    fn now(&self, kind: IoKind, offset: u64, len: usize, answer: Immediate) -> Immediate {
        let done = match answer {
            Immediate::Blocked(n) => n,
            Immediate::Done | Immediate::Failed(_) => len,
        };
        if done > 0 {
            let place = self.shared.begin(self.number, kind, (offset, done as u64), false);
            self.shared.end(place, !matches!(answer, Immediate::Failed(_)));
        }
        answer
    }

    fn over(&mut self, done: &Finished) {
        self.shared.end(self.places[done.slot as usize].take(), done.result.is_ok());
    }
}

impl Channel for RecorderChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        let answer = self.inner.read_now(offset, data);
        self.now(IoKind::Read, offset, data.len(), answer)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        let answer = self.inner.write_now(offset, data);
        self.now(IoKind::Write, offset, data.len(), answer)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        let answer = self.inner.read_tagged_now(offset, data, tags);
        self.now(IoKind::Read, offset, data.len(), answer)
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        let answer = self.inner.write_tagged_now(offset, data, tags);
        self.now(IoKind::Write, offset, data.len(), answer)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let durable = io.is_durable();
        self.places[slot as usize] = self.shared.begin(self.number, io.kind(), io.extent(), durable);
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
    use super::*;
    use underseal_device::{Blocking, RamDevice};

    #[test]
    fn requests_are_recorded_in_their_order_up_to_the_limit() {
        let device = RecorderDevice::new(Arc::new(RamDevice::new(1 << 20)), 4);
        let mut first = Blocking::new(&device).unwrap();
        let mut second = Blocking::new(&device).unwrap();
        first.write(4096, &[1; 512], true).unwrap();
        second.read(0, &mut [0; 1024]).unwrap();
        first.flush().unwrap();
        second.discard(8192, 4096).unwrap();
        first.zero(0, 512).unwrap();
        assert_eq!(device.dropped(), 1);
        let seen: Vec<_> =
            device.take().iter().map(|r| (r.kind, r.offset, r.len, r.durable, r.channel)).collect();
        let expected = [
            (IoKind::Write, 4096, 512, true, 0),
            (IoKind::Read, 0, 1024, false, 1),
            (IoKind::Flush, 0, 0, false, 0),
            (IoKind::Discard, 8192, 4096, false, 1),
        ];
        assert_eq!(seen, expected);
        first.flush().unwrap();
        let after = device.take();
        assert_eq!(after.len(), 1);
        assert!(after[0].finished.is_some_and(|(at, ok)| ok && at > after[0].started));
    }

    #[test]
    fn what_is_answered_at_once_is_recorded_too() {
        let device = RecorderDevice::new(Arc::new(RamDevice::new(1 << 20)), 4);
        assert!(matches!(device.channel(1).unwrap().write_now(0, &[1; 4096]), Immediate::Done));
        let records = device.take();
        assert_eq!((records.len(), records[0].kind, records[0].len), (1, IoKind::Write, 4096));
    }
}
