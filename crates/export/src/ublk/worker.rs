//! A hardware queue: takes requests from the driver, puts them into its queue and answers them.

#![expect(unsafe_code, reason = "commands of ublk's driver")]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::abi as sys;
use rustix::io::Errno;
use underseal_datapath::{Completion, Mapping, Queue, QueueOptions, Request as Job, ZoneAction};

use super::character;
use super::queues::RequestGate;
use super::request::Request;
use super::zones::Pointers;
use crate::errno::errno;
use crate::export_loop::{self, ExportLoop, Took, Wake};
use crate::failure_log::RateLimitedLog;
use crate::{Error, ErrorKind, Result};

/// The most bytes in flight on one queue; its request memory is twice as large.
const IN_FLIGHT: usize = 8 << 20;

/// The parameters of a worker.
pub(super) struct Part {
    pub(super) mapping: Arc<Mapping>,
    pub(super) number: u16,
    pub(super) depth: u16,
    /// The longest read or write, in bytes.
    pub(super) longest: usize,
    /// True when the kernel copies the data.
    pub(super) unprivileged: bool,
    /// Set when the worker is to end, and to leave unanswered requests to the next server.
    pub(super) lets_go: Arc<AtomicBool>,
    /// Closed while requests are not to be served.
    pub(super) gate: Arc<RequestGate>,
}

impl Part {
    /// Opens the calling thread's queue, which takes most of a worker's start. Fails with `Io` when
    /// the system has no ring or memory.
    pub(super) fn queue(&self) -> Result<Queue> {
        let options = QueueOptions { depth: self.depth.into(), max_request: IN_FLIGHT.max(self.longest) };
        Queue::open(self.mapping.clone(), options)
            .map_err(|e| Error::new(ErrorKind::Io, "no queue for the block device").with_source(e))
    }
}

pub(super) struct Worker {
    queue: Queue,
    driver: character::HardwareQueue,
    number: u16,
    longest: usize,
    /// Requests in flight, by tag.
    requests: Box<[Option<Request>]>,
    /// Tags of requests that wait for memory.
    waiting: VecDeque<u16>,
    /// The number of tags that the driver has, or will have again.
    live: usize,
    failure_log: RateLimitedLog,
    /// The write pointers of zones.
    pointers: Pointers,
    lets_go: Arc<AtomicBool>,
    /// The gate until this worker has seen it open.
    gate: Option<Arc<RequestGate>>,
    /// The tags of requests that arrived before.
    held: VecDeque<u16>,
}

impl Worker {
    /// A worker for the calling thread. The driver has a fetch for each tag when this returns.
    /// Fails with `Ublk` when the driver refuses.
    pub(super) fn new(part: Part, queue: Queue, file: Arc<File>) -> Result<Self> {
        let Part { mapping, number, depth, longest, unprivileged, lets_go, gate } = part;
        let refused = |e| Error::new(ErrorKind::Ublk, format!("queue {number} of ublk")).with_source(e);
        let pointers = Pointers::new(mapping);
        let driver = character::HardwareQueue::new(file, number, depth, unprivileged.then_some(longest));
        let mut this = Self {
            queue,
            driver: driver.map_err(refused)?,
            number,
            longest,
            requests: (0..depth).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(depth.into()),
            live: 0,
            failure_log: RateLimitedLog::new("this queue"),
            pointers,
            lets_go,
            gate: Some(gate),
            held: VecDeque::new(),
        };
        for tag in 0..depth {
            this.command(sys::UBLK_U_IO_FETCH_REQ, tag, 0).map_err(refused)?;
        }
        this.queue.poll().map_err(refused)?;
        // A refusal of the driver arrives at once.
        while let Some((tag, answer)) = this.queue.next_answer() {
            this.begin(tag, answer)?;
        }
        Ok(this)
    }

    /// Serves until the device is stopped, and finishes the requests in flight; or until the device
    /// is released: answers given by then reach the driver. Fails when the kernel refuses a
    /// command.
    pub(super) fn run(mut self) -> Result<()> {
        export_loop::serve(&mut self)?;
        if self.live > 0 {
            self.queue.poll()?;
        }
        Ok(())
    }

    /// Gives the driver the result of a tag's request, and fetches the tag's next one.
    fn commit(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.commit_at(tag, result, self.driver.address(tag))
    }

    fn commit_at(&mut self, tag: u16, result: i32, address: u64) -> io::Result<()> {
        self.requests[usize::from(tag)] = None;
        self.live -= 1;
        self.command_at(sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, tag, result, address)
    }

    fn command(&mut self, operation: u32, tag: u16, result: i32) -> io::Result<()> {
        self.command_at(operation, tag, result, self.driver.address(tag))
    }

    fn command_at(&mut self, operation: u32, tag: u16, result: i32, address: u64) -> io::Result<()> {
        let payload = character::command(self.number, tag, result, address);
        // SAFETY: the command has the address of the tag's own buffer, or none (the field may be a
        // sector number then). The driver writes to the buffer until it answers; this process
        // accesses it only for requests that were fetched, and unmaps it after all commands have
        // ended (see `drop`).
        unsafe { self.queue.command(self.driver.as_fd(), operation, payload, tag.into()) }?;
        self.live += 1;
        Ok(())
    }

    /// Handles the driver's answer to a command. Returns how many bytes the request moves.
    fn begin(&mut self, tag: u32, answer: i32) -> Result<usize> {
        const OK: i32 = sys::UBLK_IO_RES_OK as i32;
        let tag = u16::try_from(tag).ok().filter(|tag| usize::from(*tag) < self.requests.len());
        let Some(tag) = tag else {
            return Err(Error::new(ErrorKind::Protocol, "ublk answered for a tag that there is not"));
        };
        match answer {
            OK if self.gate.is_some() => {
                self.held.push_back(tag);
                return Ok(0);
            }
            OK => {}
            // The device is being stopped.
            sys::UBLK_IO_RES_ABORT => {
                self.live -= 1;
                return Ok(0);
            }
            other => {
                self.live -= 1;
                let cause = io::Error::from_raw_os_error(other.saturating_neg());
                let context = format!("queue {} of ublk refused a command", self.number);
                return Err(Error::new(ErrorKind::Ublk, context).with_source(cause));
            }
        }
        self.begin_request(tag)
    }

    /// Starts the request that the driver has handed out for a tag. Returns how many bytes it
    /// moves.
    fn begin_request(&mut self, tag: u16) -> Result<usize> {
        let request = self.driver.descriptor(tag).ok_or(Errno::INVAL);
        match request.and_then(|descriptor| Request::parse(&descriptor, self.longest)) {
            Ok(request) => {
                self.requests[usize::from(tag)] = Some(request);
                Ok(self.start(tag, request)?)
            }
            Err(errno) => {
                self.commit(tag, -errno.raw_os_error())?;
                Ok(0)
            }
        }
    }

    /// Puts a request into the queue, or behind those that wait for memory. Returns how many bytes
    /// it moves.
    fn start(&mut self, tag: u16, request: Request) -> io::Result<usize> {
        let (job, moves) = match request {
            Request::Read { offset, len } => (Job::Read { offset, len }, len),
            Request::Write { .. } | Request::Append { .. } => {
                let (len, durable) = match request {
                    Request::Write { len, durable, .. } => (len, durable),
                    Request::Append { len, .. } => (len, false),
                    _ => (0, false),
                };
                let Some(mut data) = self.queue.alloc(len) else {
                    self.waiting.push_back(tag);
                    return Ok(0);
                };
                if let Err(e) = self.driver.read(tag, &mut data) {
                    self.queue.free(data);
                    log::error!("a write's data cannot be fetched from ublk: {e}");
                    return self.commit(tag, refusal(&e)).map(|()| 0);
                }
                let offset = match self.place(tag, request) {
                    Ok(offset) => offset,
                    Err(e) => {
                        self.queue.free(data);
                        return self.commit(tag, refusal(&e)).map(|()| 0);
                    }
                };
                (Job::Write { offset, data, durable }, len)
            }
            Request::Flush => (Job::Flush, 0),
            Request::Discard { offset, len } => (Job::Discard { offset, len, durable: false }, 0),
            Request::Zero { offset, len, punch } => {
                (Job::WriteZeroes { offset, len, durable: false, punch, fast: false }, 0)
            }
            Request::Report { .. } | Request::Zone { .. } | Request::ResetAll => {
                let result = self.zones(tag, request).unwrap_or_else(|e| refusal(&e));
                return self.commit(tag, result).map(|()| 0);
            }
        };
        match self.queue.submit(tag.into(), job) {
            Ok(()) => Ok(moves),
            Err(back) => {
                if let Job::Write { data, .. } = back {
                    self.queue.free(data);
                }
                self.waiting.push_back(tag);
                Ok(0)
            }
        }
    }

    /// Returns the offset of a write. For an append it is allotted here, and stored in the request.
    fn place(&mut self, tag: u16, request: Request) -> io::Result<u64> {
        match request {
            Request::Append { offset, len } => {
                let at = self.pointers.append(offset, len as u64)?;
                self.requests[usize::from(tag)] = Some(Request::Append { offset: at, len });
                Ok(at)
            }
            Request::Write { offset, len, .. } => {
                self.pointers.written(offset, len as u64);
                Ok(offset)
            }
            _ => Ok(0),
        }
    }

    /// Reports zones or changes them, and waits for the device, since both are rare. Returns the
    /// result for the driver.
    fn zones(&mut self, tag: u16, request: Request) -> io::Result<i32> {
        match request {
            Request::Report { offset, count } => {
                let report = self.pointers.report(offset, count)?;
                self.driver.write(tag, &report)?;
                Ok(bytes(report.len()))
            }
            Request::Zone { offset, action } => self.pointers.act(action, Some(offset)).map(|()| 0),
            _ => self.pointers.act(ZoneAction::Reset, None).map(|()| 0),
        }
    }

    /// Retries the requests that wait for memory, each once; those that find none wait again.
    fn start_waiting(&mut self) -> io::Result<()> {
        for _ in 0..self.waiting.len() {
            let Some(tag) = self.waiting.pop_front() else { break };
            if let Some(request) = self.requests[usize::from(tag)] {
                self.start(tag, request)?;
            }
            if self.waiting.back() == Some(&tag) {
                break;
            }
        }
        Ok(())
    }

    fn settle(&mut self, completion: Completion) -> io::Result<()> {
        let Completion { tag, result, buffer } = completion;
        let Some(tag) = u16::try_from(tag).ok() else { return Ok(()) };
        let Some(request) = self.requests.get(usize::from(tag)).copied().flatten() else { return Ok(()) };
        let ready = self.queue.clock();
        let result = match (result, request, &buffer) {
            (Ok(()), Request::Read { len, .. }, Some(data)) => match self.driver.write(tag, &data[..len]) {
                Ok(()) => bytes(len),
                Err(e) => {
                    log::error!("a read's data cannot be given to ublk: {e}");
                    refusal(&e)
                }
            },
            (Ok(()), Request::Write { len, .. } | Request::Append { len, .. }, _) => bytes(len),
            (Ok(()), ..) => 0,
            (Err(failure), ..) => {
                if let Request::Write { offset, .. } | Request::Append { offset, .. } = request {
                    self.pointers.forget(offset);
                }
                self.failure_log.tell(request, &failure);
                -errno(&failure).raw_os_error()
            }
        };
        buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        match request {
            Request::Append { offset, .. } => self.commit_at(tag, result, offset / 512)?,
            _ => self.commit(tag, result)?,
        }
        self.queue.replied(ready, Instant::now());
        Ok(())
    }
}

impl ExportLoop for Worker {
    type Error = Error;

    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// The driver's orders arrive as answers to its commands.
    fn begin_turn(&mut self) -> Result<()> {
        Ok(())
    }

    fn take(&mut self) -> Result<Took> {
        if let Some(gate) = self.gate.take_if(|gate| gate.is_open()) {
            gate.pass();
        }
        if self.gate.is_none()
            && let Some(tag) = self.held.pop_front()
        {
            return self.begin_request(tag).map(Took::Request);
        }
        match self.queue.next_answer() {
            Some((tag, answer)) => self.begin(tag, answer).map(Took::Request),
            None => Ok(Took::Nothing),
        }
    }

    fn answer(&mut self, completion: Completion) -> Result<()> {
        self.settle(completion)?;
        Ok(self.start_waiting()?)
    }

    /// A completed command in the ring wakes the thread.
    fn listen(&mut self, _: Wake) -> Result<bool> {
        Ok(self.lets_go.load(Ordering::SeqCst))
    }

    /// All events are for `take`, which leaves none behind.
    fn hear(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn is_over(&self) -> bool {
        self.live == 0 || self.lets_go.load(Ordering::SeqCst)
    }
}

impl Drop for Worker {
    /// When the thread ends early, the kernel may still write to the buffers.
    fn drop(&mut self) {
        if self.live > 0 {
            self.driver.leave_buffers();
        }
    }
}

/// Returns an error in the driver's form.
fn refusal(e: &io::Error) -> i32 {
    -Errno::from_io_error(e).unwrap_or(Errno::IO).raw_os_error()
}

/// Returns a number of bytes in the driver's form.
fn bytes(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}
