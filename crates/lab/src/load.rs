//! The load generator: threads, each of which keeps `depth` requests in flight on a separate
//! stream.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use underseal_datapath::{Histogram, Mapping, Policy};
use underseal_device::{Buffer, Device};

use crate::stream::{Bare, FinishedRequest, RequestStream, queue};
use crate::{Error, ErrorKind, Result};

/// The requests of a load, their depth, and its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Threads, each with a separate stream.
    pub(crate) threads: usize,
    /// The number of simultaneous requests of each thread.
    pub(crate) depth: usize,
    /// The size of each request in bytes.
    pub(crate) size: usize,
    pub(crate) pattern: Pattern,
    /// The percentage of reads.
    pub(crate) reads: u8,
    pub(crate) until: LoadEnd,
    /// The smallest time between the beginnings of a thread's requests. Zero stands for full speed.
    pub(crate) pace: Duration,
}

/// The places of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Each thread reads or writes its own part of the volume, again and again.
    Sequential,
    /// Random places.
    Random,
}

/// The end of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadEnd {
    /// After this time.
    Time(Duration),
    /// When each thread has moved this number of bytes.
    Bytes(u64),
}

impl Load {
    /// A load of one thread, one request at a time, sequential.
    pub(crate) fn new(size: usize, reads: u8, until: LoadEnd) -> Self {
        let pattern = Pattern::Sequential;
        Self { threads: 1, depth: 1, size, pattern, reads, until, pace: Duration::ZERO }
    }

    pub(crate) fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    pub(crate) fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    pub(crate) fn random(self) -> Self {
        Self { pattern: Pattern::Random, ..self }
    }

    pub(crate) fn pace(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }
}

/// The path of a load.
#[derive(Clone)]
pub(crate) enum LoadTarget {
    /// The device alone.
    Bare(Arc<dyn Device>),
    /// A volume under a policy.
    Volume(Arc<Mapping>, Policy),
}

impl LoadTarget {
    fn size(&self) -> u64 {
        match self {
            Self::Bare(device) => device.geometry().size,
            Self::Volume(mapping, _) => mapping.size(),
        }
    }
}

/// The results of a load.
#[derive(Debug, Clone)]
pub(crate) struct LoadResult {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// The number of failed requests, which are not counted in `requests`.
    pub(crate) errors: u64,
    pub(crate) elapsed: Duration,
    /// The processor time of the whole process.
    pub(crate) cpu: Duration,
    pub(crate) latency: Histogram,
}

impl LoadResult {
    /// Returns the rate in 10^6 bytes a second.
    pub(crate) fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns a quantile of the latency, in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        self.latency.quantile(share).as_secs_f64() * 1e6
    }
}

/// Runs a load. The first failed request ends it.
pub(crate) fn run(target: &LoadTarget, load: &Load) -> Result<LoadResult> {
    let seen = run_with_errors(target, load)?;
    match seen.1 {
        Some(error) => Err(error),
        None => Ok(seen.0),
    }
}

/// Runs a load whose requests may fail; returns the first request's error beside the results.
pub(crate) fn run_with_errors(target: &LoadTarget, load: &Load) -> Result<(LoadResult, Option<Error>)> {
    if let LoadTarget::Volume(mapping, policy) = target {
        mapping.set_policy(*policy)?;
    }
    let barrier = Barrier::new(load.threads);
    let results: Vec<Result<Ran>> = thread::scope(|scope| {
        let start = |nth| {
            let barrier = &barrier;
            scope.spawn(move || thread(nth, target, load, barrier))
        };
        let threads: Vec<_> = (0..load.threads).map(start).collect();
        let died = || Err(Error::new(ErrorKind::Wrong, "a thread of the load panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| died())).collect()
    });
    let mut seen = LoadResult {
        bytes: 0,
        requests: 0,
        errors: 0,
        elapsed: Duration::ZERO,
        cpu: Duration::ZERO,
        latency: Histogram::default(),
    };
    let mut error = None;
    for ran in results {
        let ran = ran?;
        seen.bytes += ran.bytes;
        seen.requests += ran.requests;
        seen.errors += ran.errors;
        seen.elapsed = seen.elapsed.max(ran.elapsed);
        // All threads measure the same process's time.
        seen.cpu = seen.cpu.max(ran.cpu);
        seen.latency.merge(&ran.latency);
        error = error.or(ran.first_error);
    }
    Ok((seen, error))
}

/// The results of one thread.
#[derive(Default)]
struct Ran {
    bytes: u64,
    requests: u64,
    errors: u64,
    first_error: Option<Error>,
    elapsed: Duration,
    cpu: Duration,
    latency: Histogram,
}

fn thread(nth: usize, target: &LoadTarget, load: &Load, barrier: &Barrier) -> Result<Ran> {
    // Every thread reaches the barrier, even one whose stream fails to open.
    match target {
        LoadTarget::Bare(device) => {
            let stream = Bare::open(&**device, load.depth, load.size);
            both(stream, nth, target.size(), load, barrier)
        }
        LoadTarget::Volume(mapping, _) => {
            let stream = queue(mapping, load.depth, load.size);
            both(stream, nth, target.size(), load, barrier)
        }
    }
}

/// Runs a warm-up for memory, caches and workers, and then the load.
fn both<S: RequestStream>(
    stream: Result<S>,
    nth: usize,
    size: u64,
    load: &Load,
    barrier: &Barrier,
) -> Result<Ran> {
    let mut generator = stream.and_then(|stream| Generator::new(stream, nth, size, load));
    let warm = match (load.until, &mut generator) {
        (LoadEnd::Time(time), Ok(generator)) => generator.run(LoadEnd::Time(time / 8)).map(|_| ()),
        // A load that ends after a number of bytes counts from its first byte.
        _ => Ok(()),
    };
    barrier.wait();
    let mut generator = generator?;
    warm?;
    let cpu = process_time();
    let mut ran = generator.run(load.until)?;
    ran.cpu = process_time() - cpu;
    Ok(ran)
}

/// The load of one thread.
struct Generator<'a, S> {
    stream: S,
    load: &'a Load,
    random: fastrand::Rng,
    /// The thread's part of the volume, in requests.
    from: u64,
    count: u64,
    at: u64,
    /// The beginning of each tag's request.
    began: Vec<Instant>,
    free: Vec<u32>,
    /// Memory of finished writes, for reuse.
    buffers: Vec<Buffer>,
}

impl<'a, S: RequestStream> Generator<'a, S> {
    fn new(stream: S, nth: usize, size: u64, load: &'a Load) -> Result<Self> {
        let all = size / load.size as u64;
        let (from, count) = match load.pattern {
            Pattern::Random => (0, all),
            Pattern::Sequential => {
                let each = all / load.threads as u64;
                (each * nth as u64, each)
            }
        };
        if count == 0 {
            let context = format!("a volume of {size} bytes is too small for requests of {}", load.size);
            return Err(Error::new(ErrorKind::Wrong, context));
        }
        let depth = u32::try_from(load.depth).unwrap_or(u32::MAX);
        Ok(Self {
            stream,
            load,
            random: fastrand::Rng::with_seed(nth as u64 + 1),
            from,
            count,
            at: 0,
            began: vec![Instant::now(); load.depth],
            free: (0..depth).rev().collect(),
            buffers: Vec::with_capacity(load.depth),
        })
    }

    fn run(&mut self, until: LoadEnd) -> Result<Ran> {
        let mut ran = Ran::default();
        let start = Instant::now();
        let mut now = start;
        let mut next = start;
        let mut left = match until {
            LoadEnd::Time(_) => u64::MAX,
            LoadEnd::Bytes(bytes) => bytes / self.load.size as u64,
        };
        loop {
            let over = left == 0 || matches!(until, LoadEnd::Time(time) if now - start >= time);
            if over && self.free.len() == self.load.depth {
                break;
            }
            let idle = self.free.len() == self.load.depth;
            if !over && now >= next && !self.free.is_empty() {
                if self.submit(now)? {
                    left -= 1;
                    if self.load.pace > Duration::ZERO {
                        // A late request does not cause a burst afterwards.
                        next = now + self.load.pace;
                    }
                } else if idle {
                    return Err(Error::new(ErrorKind::Wrong, "an idle stream takes no request"));
                } else {
                    self.stream.wait()?;
                }
            } else if idle {
                thread::sleep(next.saturating_duration_since(now));
                now = Instant::now();
            } else if self.load.pace > Duration::ZERO && !over && !self.free.is_empty() {
                self.stream.poll()?;
                now = Instant::now();
            } else {
                self.stream.wait()?;
            }
            // The order of the exports' loops: submit first, then work on submitted requests.
            let more = left > 0 && !matches!(until, LoadEnd::Time(time) if now - start >= time);
            while let Some(done) = if more && now >= next && !self.free.is_empty() {
                self.stream.ready()
            } else {
                self.stream.next()
            } {
                now = Instant::now();
                self.count(done, now, &mut ran)?;
            }
        }
        ran.elapsed = now - start;
        Ok(ran)
    }

    /// Begins the next request. Returns false when the stream accepts none now.
    fn submit(&mut self, now: Instant) -> Result<bool> {
        let Some(&tag) = self.free.last() else { return Ok(false) };
        let len = self.load.size;
        let nth = match self.load.pattern {
            Pattern::Sequential => self.at % self.count,
            Pattern::Random => self.random.u64(0..self.count),
        };
        let offset = (self.from + nth) * len as u64;
        // Read before the submission: the request may be over when `submit` returns.
        self.began[tag as usize] = now;
        let reads =
            self.load.reads == 100 || (self.load.reads > 0 && self.random.u8(0..100) < self.load.reads);
        let taken = if reads {
            self.stream.read(tag, offset, len)
        } else {
            let buffer = self.buffers.pop().or_else(|| self.stream.alloc(len));
            let no_memory = || Error::new(ErrorKind::Wrong, "the stream has no memory for a write");
            let back = self.stream.write(tag, offset, buffer.ok_or_else(no_memory)?);
            let taken = back.is_none();
            self.buffers.extend(back);
            taken
        };
        if taken {
            self.free.pop();
            self.at += 1;
        }
        Ok(taken)
    }

    fn count(&mut self, done: FinishedRequest, now: Instant, ran: &mut Ran) -> Result<()> {
        let began = self.began.get(done.tag as usize);
        let began = began.ok_or_else(|| Error::new(ErrorKind::Wrong, "an answer without a request"))?;
        match done.result {
            Ok(()) => {
                ran.bytes += self.load.size as u64;
                ran.requests += 1;
                ran.latency.record(now - *began);
            }
            Err(e) => {
                ran.errors += 1;
                ran.first_error.get_or_insert(e);
            }
        }
        self.free.push(done.tag);
        if let Some(buffer) = done.buffer {
            if self.load.reads == 0 {
                self.buffers.push(buffer);
            } else {
                self.stream.free(buffer);
            }
        }
        Ok(())
    }
}

/// Returns the processor time of all threads.
pub(crate) fn process_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes;
    use underseal_device::RamDevice;

    fn targets() -> Vec<LoadTarget> {
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(1 << 20));
        let mapping = volumes::mapping(volumes::XTS, 4096, &device).unwrap();
        vec![LoadTarget::Bare(device), LoadTarget::Volume(mapping, Policy::INLINE)]
    }

    #[test]
    fn every_request_is_counted_once() {
        for target in targets() {
            for (depth, reads) in [(1, 100), (7, 0), (3, 50)] {
                let load = Load::new(8192, reads, LoadEnd::Bytes(8192 * 100)).depth(depth).threads(2);
                let seen = run(&target, &load).unwrap();
                assert_eq!((seen.requests, seen.bytes, seen.errors), (200, 200 * 8192, 0));
                assert_eq!(seen.latency.count(), 200);
                assert!(seen.mb_per_s() > 0.0 && seen.elapsed > Duration::ZERO);
            }
        }
    }

    #[test]
    fn a_load_that_is_paced_is_not_faster() {
        for target in targets() {
            for depth in [1, 4] {
                let pace = Duration::from_millis(2);
                let load = Load::new(4096, 100, LoadEnd::Bytes(4096 * 10)).random().depth(depth).pace(pace);
                let seen = run(&target, &load).unwrap();
                assert_eq!(seen.requests, 10);
                assert!(seen.elapsed >= pace * 9, "{:?}", seen.elapsed);
            }
        }
    }

    /// Answers a request only when `next` is called, and notes the number of requests at that time.
    struct Lazy {
        has: Vec<u32>,
        had: Vec<usize>,
    }

    impl RequestStream for &mut Lazy {
        fn alloc(&mut self, _: usize) -> Option<Buffer> {
            None
        }
        fn free(&mut self, _: Buffer) {}
        fn read(&mut self, tag: u32, _: u64, _: usize) -> bool {
            self.has.push(tag);
            true
        }
        fn write(&mut self, _: u32, _: u64, data: Buffer) -> Option<Buffer> {
            Some(data)
        }
        fn next(&mut self) -> Option<FinishedRequest> {
            self.had.push(self.has.len());
            Some(FinishedRequest { tag: self.has.pop()?, result: Ok(()), buffer: None })
        }
        fn ready(&mut self) -> Option<FinishedRequest> {
            None
        }
        fn poll(&mut self) -> Result<()> {
            Ok(())
        }
        fn wait(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn as_many_are_in_flight_as_were_asked_for_before_any_is_worked_on() {
        let mut lazy = Lazy { has: Vec::new(), had: Vec::new() };
        let load = Load::new(4096, 100, LoadEnd::Bytes(4096 * 100)).depth(8);
        let ran = Generator::new(&mut lazy, 0, 1 << 20, &load).unwrap().run(load.until).unwrap();
        assert_eq!(ran.requests, 100);
        // The last eight requests have no followers.
        assert!(lazy.had[..93].iter().all(|&had| had == 8), "{:?}", lazy.had);
    }

    #[test]
    fn a_volume_that_is_too_small_is_refused() {
        for target in targets() {
            let load = Load::new(1 << 20, 100, LoadEnd::Bytes(1 << 20)).threads(2);
            assert_eq!(run(&target, &load).unwrap_err().kind(), ErrorKind::Wrong);
        }
    }
}
