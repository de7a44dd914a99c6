//! One thread: it takes requests from the kernel, puts them into its queue and answers them.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use underseal_datapath::{Buffer, Completion, Error as Failure, ErrorKind as Kind, Queue, QueueOptions};
use underseal_datapath::{Full, Request as Job};

use super::INBOX;
use super::protocol::{self, Body, Call, HEAD, Operation};
use super::protocol::{FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES};
use super::server::Shared;
use super::transport::{Received, Transport};
use crate::tickets::Tickets;
use crate::{Error, ErrorKind, Result};

/// Requests in flight on one thread.
const DEPTH: u32 = 128;

/// Request memory of one thread is twice this: so many bytes are in flight at most.
const IN_FLIGHT: usize = 16 << 20;

/// What has come from the kernel is handed to the lower device after so many bytes at the latest.
const HAND_OVER: usize = 128 << 10;

/// How many of a thread's failures are logged one by one; then every thousandth.
const LOGGED: u64 = 20;

/// Requests that were there one after the other and show that one thread is not enough. A lone client that is quick can
/// send a few.
const STREAM: u32 = 16;

/// After a request of so many bytes another one that is there already has waited.
const LONG: usize = 32 << 10;

/// The ring's numbers for the descriptor and for the bell of those that rest.
const READABLE: u32 = 0;
const WANTED: u32 = 1;

/// Open flags as the kernel passes them on.
const O_DIRECT: u32 = OFlags::DIRECT.bits();
const O_DSYNC: u32 = OFlags::DSYNC.bits();

pub(super) struct Worker {
    shared: Arc<Shared>,
    transport: Transport,
    queue: Queue,
    head: [u8; HEAD],
    /// Where payloads arrive. A longest write goes on from here; another takes its place.
    inbox: Buffer,
    tickets: Tickets<Ticket>,
    watching: bool,
    resting: bool,
    /// The bytes of the last read or write.
    last: usize,
    failures: u64,
}

/// A request under way and how it is answered.
struct Ticket {
    unique: u64,
    answer: Answer,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// What was read.
    Data,
    Written(u32),
    Done,
}

/// What is answered at once, or that the queue has it.
type Answered = std::result::Result<Option<Body>, Errno>;

impl Worker {
    /// The calling thread's.
    ///
    /// # Errors
    /// `Io` when the system has no ring or memory for its queue.
    pub(super) fn new(shared: Arc<Shared>, transport: Transport) -> Result<Self> {
        let no_queue = |e| Error::new(ErrorKind::Io, "no queue for the mount").with_source(e);
        let options = QueueOptions { depth: DEPTH, max_request: IN_FLIGHT };
        let mut queue = Queue::open(shared.mapping.clone(), options).map_err(no_queue)?;
        let inbox =
            queue.alloc(INBOX as usize).expect("a new queue's memory is free and larger than one request");
        Ok(Self {
            shared,
            transport,
            queue,
            head: [0; HEAD],
            inbox,
            tickets: Tickets::new(DEPTH),
            watching: false,
            resting: false,
            last: 0,
            failures: 0,
        })
    }

    /// Serves until the mount is gone; what is in flight is finished.
    ///
    /// # Errors
    /// When the kernel refuses to go on.
    pub(super) fn run(mut self) -> Result<()> {
        let (mut taken, mut row) = (0, 0);
        loop {
            while self.tickets.is_full() {
                self.wait(false)?;
            }
            match self.transport.receive(&mut self.head, &mut self.inbox)? {
                Received::Request(len) => {
                    row += 1;
                    if row > STREAM || (row > 1 && self.last >= LONG) {
                        self.shared.turns.call();
                    }
                    self.take(len)?;
                    self.answer_completions()?;
                    taken += len;
                    if taken >= HAND_OVER && !self.tickets.is_empty() {
                        taken = 0;
                        self.queue.poll()?;
                        self.answer_completions()?;
                    }
                }
                Received::Nothing => {
                    (taken, row) = (0, 0);
                    self.wait(true)?;
                }
                Received::Ended => break,
            }
            if self.shared.cut_off.load(Ordering::Relaxed) {
                break;
            }
        }
        while !self.tickets.is_empty() {
            self.wait(false)?;
        }
        Ok(())
    }

    /// Waits for the lower device, and for requests if it says so.
    fn wait(&mut self, requests: bool) -> io::Result<()> {
        // What came while the thread was at work has changed what there is to do.
        if !(self.take_events() && requests) {
            if requests {
                self.listen_or_rest()?;
            }
            self.queue.wait()?;
            self.take_events();
        }
        self.answer_completions()
    }

    /// Sees to it that the next request wakes this thread, or another that listens already.
    fn listen_or_rest(&mut self) -> io::Result<()> {
        const POLLIN: i16 = 1;
        let turns = &self.shared.turns;
        if self.watching {
            return Ok(());
        }
        if self.tickets.is_empty() && turns.somebody_listens() {
            if !self.resting {
                self.queue.watch(turns.as_fd(), POLLIN, WANTED)?;
                self.resting = true;
                turns.rests();
            }
            // The other may have taken a request since, without seeing this one.
            if turns.somebody_listens() {
                return Ok(());
            }
        }
        self.queue.watch(self.transport.as_fd(), POLLIN, READABLE)?;
        self.watching = true;
        turns.listens();
        Ok(())
    }

    /// Notes what the ring has seen for this thread. True when there may be a request.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.queue.next_event() {
            any = true;
            if event == READABLE {
                self.watching = false;
                self.shared.turns.has_heard();
            } else {
                self.resting = false;
                self.shared.turns.is_up();
            }
        }
        any
    }

    /// Takes in the request of `len` bytes that has arrived.
    fn take(&mut self, len: usize) -> Result<()> {
        let head = self.head;
        let Some(Call { unique, node, operation }) = protocol::parse(&head, len) else {
            return Err(Error::new(ErrorKind::Protocol, "the kernel sent a request that makes no sense"));
        };
        let answered = match operation {
            Operation::Silent => return Ok(()),
            Operation::Read { offset, size } => self.read(unique, node, offset, size),
            Operation::Write { offset, size, flags } => self.write(unique, node, offset, size, flags),
            Operation::Fsync => self.start(unique, Answer::Done, Job::Flush),
            Operation::Fallocate { offset, len, mode } => self.fallocate(unique, node, offset, len, mode),
            Operation::ReadDir { offset, size } => {
                let listing = self.shared.files.list(offset, size as usize);
                return Ok(self.transport.reply(unique, &listing)?);
            }
            other => self.at_once(node, other).map(Some),
        };
        match answered {
            Ok(None) => {}
            Ok(Some(body)) => self.transport.reply(unique, body.bytes())?,
            Err(errno) => self.transport.refuse(unique, errno)?,
        }
        Ok(())
    }

    /// Answers what needs no I/O.
    fn at_once(&self, node: u64, operation: Operation<'_>) -> std::result::Result<Body, Errno> {
        let files = &self.shared.files;
        let attr = || files.attr(node).ok_or(Errno::NOENT);
        Ok(match operation {
            Operation::Lookup { name } => {
                files.lookup(node, name).map_or_else(Body::no_entry, |a| Body::entry(&a))
            }
            Operation::GetAttr => Body::attr(&attr()?),
            Operation::SetAttr { valid, size } => {
                let attr = attr()?;
                settable(valid, size, attr.size)?;
                Body::attr(&attr)
            }
            Operation::Open { flags } => Body::open(self.open_flags(flags)),
            Operation::OpenDir => Body::open(0),
            Operation::StatFs => {
                let (size, count, block) = files.totals();
                Body::statfs(size, count, block)
            }
            Operation::Done => Body::EMPTY,
            // The kernel does not ask again for what is not there: extended attributes, flushes on close.
            _ => return Err(Errno::NOSYS),
        })
    }

    /// How a file's data goes through the kernel. Who wants to go past the page cache does, without taking turns; the
    /// kernel keeps both ways coherent. For the others the page cache holds what it has over closing and opening.
    fn open_flags(&self, flags: u32) -> u32 {
        let direct = flags & O_DIRECT != 0;
        match self.shared.cache {
            _ if direct => FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES,
            true => FOPEN_KEEP_CACHE,
            false => FOPEN_DIRECT_IO,
        }
    }

    fn read(&mut self, unique: u64, node: u64, offset: u64, size: u32) -> Answered {
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        // Page-sized reads may go past the end.
        let len = (file.end - file.start).saturating_sub(offset).min(size.into());
        if len == 0 {
            return Ok(Some(Body::EMPTY));
        }
        self.last = to_usize(len);
        let read = Job::Read { offset: file.start + offset, len: to_usize(len) };
        self.start(unique, Answer::Data, read)
    }

    fn write(&mut self, unique: u64, node: u64, offset: u64, size: u32, flags: u32) -> Answered {
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        let len = size as usize;
        if offset.checked_add(size.into()).is_none_or(|end| end > file.end - file.start) {
            return Err(Errno::NOSPC);
        }
        if len == 0 {
            return Ok(Some(Body::written(0)));
        }
        self.last = len;
        let offset = file.start + offset;
        let durable = flags & O_DSYNC != 0;
        if flags & O_DIRECT != 0 && !self.is_aligned(offset, size.into()) {
            return Err(Errno::INVAL);
        }
        if len == self.inbox.len()
            && let Some(fresh) = self.queue.alloc(len)
        {
            let data = std::mem::replace(&mut self.inbox, fresh);
            return self.start(unique, Answer::Written(size), Job::Write { offset, data, durable });
        }
        let ticket = self.tickets.issue(Ticket { unique, answer: Answer::Written(size) });
        while let Err(Full) = self.queue.write_in_place(ticket, offset, &mut self.inbox[..len], durable) {
            self.make_room().map_err(errno_of)?;
        }
        Ok(None)
    }

    fn fallocate(&mut self, unique: u64, node: u64, offset: u64, len: u64, mode: u32) -> Answered {
        const KEEP_SIZE: u32 = FallocateFlags::KEEP_SIZE.bits();
        const PUNCH: u32 = FallocateFlags::PUNCH_HOLE.bits();
        const ZERO: u32 = FallocateFlags::ZERO_RANGE.bits();
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let size = file.end - file.start;
        let punch = match mode & !KEEP_SIZE {
            // All that is there is allocated.
            0 if end <= size => return Ok(Some(Body::EMPTY)),
            PUNCH => true,
            ZERO if end <= size => false,
            0 | ZERO => return Err(Errno::NOSPC),
            _ => return Err(Errno::OPNOTSUPP),
        };
        // Beyond the end there is nothing to punch.
        let len = end.min(size).saturating_sub(offset);
        if len == 0 {
            return Ok(Some(Body::EMPTY));
        }
        let offset = file.start + offset;
        if !self.is_aligned(offset, len) {
            // Then the caller writes zeros.
            return Err(Errno::OPNOTSUPP);
        }
        // This can take long.
        self.shared.turns.call();
        let zero = Job::WriteZeroes { offset, len, durable: false, punch, fast: false };
        self.start(unique, Answer::Done, zero)
    }

    /// What a block device takes past the page cache.
    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        let block = u64::from(self.shared.mapping.block());
        offset.is_multiple_of(block) && len.is_multiple_of(block)
    }

    /// Puts a request into the queue, when there is room.
    fn start(&mut self, unique: u64, answer: Answer, job: Job) -> Answered {
        let ticket = self.tickets.issue(Ticket { unique, answer });
        self.submit(ticket, job).map_err(errno_of)?;
        Ok(None)
    }

    fn submit(&mut self, tag: u64, mut job: Job) -> io::Result<()> {
        while let Err(back) = self.queue.submit(tag, job) {
            job = back;
            self.make_room()?;
        }
        Ok(())
    }

    /// Ends requests until the queue can take another.
    fn make_room(&mut self) -> io::Result<()> {
        if let Some(completion) = self.queue.next_completion() {
            return self.answer(completion);
        }
        self.wait(false)
    }

    fn answer_completions(&mut self) -> io::Result<()> {
        while let Some(completion) = self.queue.next_completion() {
            self.answer(completion)?;
        }
        Ok(())
    }

    fn answer(&mut self, completion: Completion) -> io::Result<()> {
        let Completion { tag, result, buffer } = completion;
        let Some(Ticket { unique, answer }) = self.tickets.redeem(tag) else { return Ok(()) };
        let ready = self.queue.clock();
        let sent = match (result, answer, &buffer) {
            (Ok(()), Answer::Data, Some(data)) => self.transport.reply(unique, data),
            (Ok(()), Answer::Written(size), _) => self.transport.reply(unique, Body::written(size).bytes()),
            (Ok(()), ..) => self.transport.reply(unique, &[]),
            (Err(failure), ..) => {
                self.log(&format!("{answer:?}"), &failure);
                self.transport.refuse(unique, errno(&failure))
            }
        };
        self.queue.replied(ready, Instant::now());
        self.give_back(buffer);
        sent
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.queue.free(buffer);
        }
    }

    /// A line for the operator about what the lower device did.
    fn log(&mut self, what: &str, failure: &Failure) {
        if !matches!(failure.kind(), Kind::Lower | Kind::NoSpace) {
            return log::debug!("{what}: {failure}");
        }
        self.failures += 1;
        if self.failures <= LOGGED || self.failures.is_multiple_of(1000) {
            let failure = underseal_error::with_causes(failure);
            log::error!("{what}: {failure} (failure {} of this thread)", self.failures);
        }
    }
}

impl Drop for Worker {
    /// What this thread has listened for, another must.
    fn drop(&mut self) {
        if self.watching {
            self.shared.turns.has_heard();
        }
        self.shared.turns.call_all();
    }
}

/// Whether a file's attributes may be set so. As with a block device, cutting it to nothing when it is opened does
/// nothing, and so do new times.
fn settable(valid: u32, size: u64, current: u64) -> std::result::Result<(), Errno> {
    const OWNER_AND_MODE: u32 = 0b111;
    const SIZE: u32 = 1 << 3;
    match () {
        () if valid & OWNER_AND_MODE != 0 => Err(Errno::PERM),
        () if valid & SIZE != 0 && size > current => Err(Errno::NOSPC),
        () => Ok(()),
    }
}

fn errno(failure: &Failure) -> Errno {
    match failure.kind() {
        Kind::OutOfRange | Kind::Misaligned | Kind::TooLarge => Errno::INVAL,
        Kind::ReadOnly => Errno::ROFS,
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::NoSpace => Errno::NOSPC,
        _ => Errno::IO,
    }
}

fn errno_of(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

#[expect(clippy::cast_possible_truncation, reason = "a request is shorter than the address space")]
fn to_usize(len: u64) -> usize {
    len as usize
}
