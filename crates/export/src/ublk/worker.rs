//! One hardware queue: it takes requests from the driver, puts them into its queue and answers
//! them.

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
use super::request::Request;
use super::zones::Pointers;
use crate::complaints::Complaints;
use crate::door::{self, Door, Took, Wake};
use crate::errno::errno;
use crate::{Error, ErrorKind, Result};

/// Request memory of one queue is twice this: so many bytes are in flight at most.
const IN_FLIGHT: usize = 8 << 20;

/// What a worker's queue serves.
pub(super) struct Part {
    pub(super) mapping: Arc<Mapping>,
    pub(super) number: u16,
    pub(super) depth: u16,
    /// The longest read or write, in bytes.
    pub(super) longest: usize,
    /// Data is copied by the kernel.
    pub(super) unprivileged: bool,
    /// The worker ends, and leaves to the next server what it has not answered.
    pub(super) lets_go: Arc<AtomicBool>,
}

impl Part {
    /// The calling thread's queue, which takes most of the time that a worker's start takes.
    ///
    /// # Errors
    /// `Io` when the system has no ring or memory for it.
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
    /// By tag: what is under way.
    requests: Box<[Option<Request>]>,
    /// Tags of requests that wait for memory.
    waiting: VecDeque<u16>,
    /// Tags that the driver has, or will have again.
    live: usize,
    complaints: Complaints,
    /// Where zones are written next.
    pointers: Pointers,
    lets_go: Arc<AtomicBool>,
}

impl Worker {
    /// The calling thread's, with its queue. The driver has a fetch for each tag when it returns.
    ///
    /// # Errors
    /// `Ublk` when the driver refuses.
    pub(super) fn new(part: Part, queue: Queue, file: Arc<File>) -> Result<Self> {
        let Part { mapping, number, depth, longest, unprivileged, lets_go } = part;
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
            complaints: Complaints::new("this queue"),
            pointers,
            lets_go,
        };
        for tag in 0..depth {
            this.command(sys::UBLK_U_IO_FETCH_REQ, tag, 0).map_err(refused)?;
        }
        this.queue.poll().map_err(refused)?;
        // What the driver does not take it says at once.
        while let Some((tag, answer)) = this.queue.next_answer() {
            this.begin(tag, answer)?;
        }
        Ok(this)
    }

    /// Serves until the device is stopped; what is in flight is finished. Or until it lets go of
    /// it: what is answered by then reaches the driver.
    ///
    /// # Errors
    /// When the kernel refuses to go on.
    pub(super) fn run(mut self) -> Result<()> {
        door::serve(&mut self)?;
        if self.live > 0 {
            self.queue.poll()?;
        }
        Ok(())
    }

    /// Gives the driver the outcome of a tag's request, and waits for the next one there.
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
        // SAFETY: the command names the tag's own buffer, or none (it may be a sector's number
        // then). The driver writes to it until it answers; it is touched for requests that were
        // answered only, and unmapped after all commands are (see `drop`).
        unsafe { self.queue.command(self.driver.as_fd(), operation, payload, tag.into()) }?;
        self.live += 1;
        Ok(())
    }

    /// Takes what the driver answered to a command. How many bytes there are to move.
    fn begin(&mut self, tag: u32, answer: i32) -> Result<usize> {
        const OK: i32 = sys::UBLK_IO_RES_OK as i32;
        let tag = u16::try_from(tag).ok().filter(|tag| usize::from(*tag) < self.requests.len());
        let Some(tag) = tag else {
            return Err(Error::new(ErrorKind::Protocol, "ublk answered for a tag that there is not"));
        };
        match answer {
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

    /// Puts a request into the queue, or behind those that wait for memory. How many bytes it
    /// moves.
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

    /// Where a write goes: for what is appended that is decided here, and the request remembers it.
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

    /// Tells of zones or changes them, and waits for the device: neither is done often. What the
    /// driver is told.
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

    /// Tries again those that wait for memory: as many as are there now; those that find none line
    /// up again.
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
                self.complaints.tell(request, &failure);
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

impl Door for Worker {
    type Error = Error;

    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// The driver's orders are answers to its commands.
    fn begin_turn(&mut self) -> Result<()> {
        Ok(())
    }

    fn take(&mut self) -> Result<Took> {
        match self.queue.next_answer() {
            Some((tag, answer)) => self.begin(tag, answer).map(Took::Request),
            None => Ok(Took::Nothing),
        }
    }

    fn answer(&mut self, completion: Completion) -> Result<()> {
        self.settle(completion)?;
        Ok(self.start_waiting()?)
    }

    /// Each command in the ring wakes it.
    fn listen(&mut self, _: Wake) -> Result<bool> {
        Ok(self.lets_go.load(Ordering::SeqCst))
    }

    /// All of it is for [`take`](Door::take), which leaves nothing behind.
    fn hear(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn is_over(&self) -> bool {
        self.live == 0 || self.lets_go.load(Ordering::SeqCst)
    }
}

impl Drop for Worker {
    /// Where this thread ends early, the kernel may still write to the buffers that it was told of.
    fn drop(&mut self) {
        if self.live > 0 {
            self.driver.leave_buffers();
        }
    }
}

/// An error as the driver takes it.
fn refusal(e: &io::Error) -> i32 {
    -Errno::from_io_error(e).unwrap_or(Errno::IO).raw_os_error()
}

/// A count of bytes as the driver takes it.
fn bytes(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}
