//! One thread: it takes requests from the kernel, puts them into its queue and answers them.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use underseal_datapath::{Buffer, Completion, Full, Queue, QueueOptions, Request as Job};
use underseal_device::POLLIN;
use underseal_fuse::wire::{Body, open_flag};
use underseal_fuse::{FuseChannel, ReceivedRequest};

use super::INBOX;
use super::protocol::{self, Call, HEAD, Operation};
use super::server::Shared;
use crate::complaints::Complaints;
use crate::door::{self, Door, Took, Wake};
use crate::errno::errno;
use crate::tickets::Tickets;
use crate::{Error, ErrorKind, Result};

/// Requests in flight on one thread.
const DEPTH: u32 = 128;

/// Request memory of one thread is twice this: so many bytes are in flight at most.
const IN_FLIGHT: usize = 16 << 20;

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
    channel: FuseChannel,
    queue: Queue,
    head: [u8; HEAD],
    /// Where payloads arrive. A longest write goes on from here; another takes its place.
    inbox: Buffer,
    /// Where replies are put together that are not data.
    out: Vec<u8>,
    tickets: Tickets<Ticket>,
    /// The length of a request that has arrived and found no room.
    held: Option<usize>,
    /// Requests that were there one after the other.
    row: u32,
    /// No more requests come, or are to be taken.
    ended: bool,
    watching: bool,
    resting: bool,
    /// It takes nothing, so that another process may.
    rests: bool,
    /// No request wakes it.
    is_deaf: bool,
    /// The bytes of the last read or write.
    last: usize,
    complaints: Complaints,
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

impl Answer {
    /// What was asked for, in the operator's words.
    fn what(self) -> &'static str {
        match self {
            Self::Data => "a read",
            Self::Written(_) => "a write",
            Self::Done => "a flush or discard",
        }
    }
}

/// Whether `out` has the answer, the queue the request, or neither: there is no room for it.
#[derive(Debug, Clone, Copy)]
enum Taken {
    Answered,
    Queued,
    NoRoom,
}

type Answered = std::result::Result<Taken, Errno>;

impl Worker {
    /// The calling thread's.
    ///
    /// # Errors
    /// `Io` when the system has no ring or memory for its queue.
    pub(super) fn new(shared: Arc<Shared>, channel: FuseChannel) -> Result<Self> {
        let no_queue = |e| Error::new(ErrorKind::Io, "no queue for the mount").with_source(e);
        let options = QueueOptions { depth: DEPTH, max_request: IN_FLIGHT };
        let mut queue = Queue::open(shared.mapping.clone(), options).map_err(no_queue)?;
        let inbox =
            queue.alloc(INBOX as usize).expect("a new queue's memory is free and larger than one request");
        Ok(Self {
            shared,
            channel,
            queue,
            head: [0; HEAD],
            inbox,
            out: Vec::new(),
            tickets: Tickets::new(DEPTH),
            held: None,
            row: 0,
            ended: false,
            watching: false,
            resting: false,
            rests: false,
            is_deaf: false,
            last: 0,
            complaints: Complaints::new("this thread"),
        })
    }

    /// Serves until the mount is gone; what is in flight is finished.
    ///
    /// # Errors
    /// When the kernel refuses to go on.
    pub(super) fn run(mut self) -> Result<()> {
        door::serve(&mut self)
    }

    fn receive(&mut self) -> io::Result<ReceivedRequest> {
        self.channel.receive(&mut [IoSliceMut::new(&mut self.head), IoSliceMut::new(&mut self.inbox)])
    }

    fn hears_again(&mut self) {
        if std::mem::take(&mut self.is_deaf) {
            self.shared.hold.is_deaf(false);
        }
    }

    /// Whether no request is under way here.
    fn has_nothing(&self) -> bool {
        self.held.is_none() && self.tickets.is_empty()
    }

    /// Sees to it that the next request wakes this thread, or another that listens already.
    fn listen_or_rest(&mut self) -> io::Result<()> {
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
        self.queue.watch(self.channel.as_fd(), POLLIN, READABLE)?;
        self.watching = true;
        turns.listens();
        Ok(())
    }

    /// Takes in the request of `len` bytes that has arrived. False when there is no room for it.
    fn begin(&mut self, len: usize) -> Result<bool> {
        self.out.clear();
        let head = self.head;
        let Some(Call { unique, node, operation }) = protocol::parse(&head, len) else {
            return Err(Error::new(ErrorKind::Protocol, "the kernel sent a request that makes no sense"));
        };
        let answered = match operation {
            Operation::Silent => return Ok(true),
            Operation::Read { offset, size } => self.read(unique, node, offset, size),
            Operation::Write { offset, size, flags } => self.write(unique, node, offset, size, flags),
            Operation::Fsync => Ok(self.try_to_start(unique, Answer::Done, Job::Flush)),
            Operation::Fallocate { offset, len, mode } => self.fallocate(unique, node, offset, len, mode),
            Operation::ReadDir { offset, size } => {
                self.shared.files.list(offset, size as usize, &mut self.out);
                Ok(Taken::Answered)
            }
            other => self.at_once(node, other),
        };
        match answered {
            Ok(Taken::Queued) => {}
            Ok(Taken::NoRoom) => return Ok(false),
            Ok(Taken::Answered) => self.channel.reply(unique, Ok(&self.out))?,
            Err(errno) => self.channel.reply(unique, Err(errno))?,
        }
        Ok(true)
    }

    /// Answers what needs no I/O.
    fn at_once(&mut self, node: u64, operation: Operation<'_>) -> Answered {
        let (files, mut body) = (&self.shared.files, Body(&mut self.out));
        let attr = || files.attr(node).ok_or(Errno::NOENT);
        match operation {
            Operation::Lookup { name } => {
                match files.lookup(node, name) {
                    Some(attr) => body.entry(attr.ino, &attr),
                    None => body.no_entry(),
                };
            }
            Operation::GetAttr => _ = body.attributes(&attr()?),
            Operation::SetAttr { valid, size } => {
                let attr = attr()?;
                settable(valid, size, attr.size)?;
                body.attributes(&attr);
            }
            Operation::Open { flags } => _ = body.opened(0, open_flags(flags, self.shared.cache)),
            Operation::OpenDir => _ = body.opened(0, 0),
            Operation::StatFs => _ = body.statfs(&files.totals(), 255),
            Operation::Done => {}
            // The kernel does not ask again for what is not there: extended attributes, flushes on close.
            _ => return Err(Errno::NOSYS),
        }
        Ok(Taken::Answered)
    }

    fn read(&mut self, unique: u64, node: u64, offset: u64, size: u32) -> Answered {
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        // Page-sized reads may go past the end.
        let len = (file.end - file.start).saturating_sub(offset).min(size.into());
        if len == 0 {
            return Ok(Taken::Answered);
        }
        self.last = to_usize(len);
        let read = Job::Read { offset: file.start + offset, len: to_usize(len) };
        Ok(self.try_to_start(unique, Answer::Data, read))
    }

    fn write(&mut self, unique: u64, node: u64, offset: u64, size: u32, flags: u32) -> Answered {
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        let len = size as usize;
        if offset.checked_add(size.into()).is_none_or(|end| end > file.end - file.start) {
            return Err(Errno::NOSPC);
        }
        if len == 0 {
            Body(&mut self.out).written(0);
            return Ok(Taken::Answered);
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
            let write = Job::Write { offset, data, durable };
            return Ok(match self.start(unique, Answer::Written(size), write) {
                Ok(()) => Taken::Queued,
                Err(back) => {
                    if let Job::Write { data, .. } = back {
                        self.queue.free(std::mem::replace(&mut self.inbox, data));
                    }
                    Taken::NoRoom
                }
            });
        }
        let ticket = self.tickets.issue(Ticket { unique, answer: Answer::Written(size) });
        if let Err(Full) = self.queue.write_in_place(ticket, offset, &mut self.inbox[..len], durable) {
            self.tickets.redeem(ticket);
            return Ok(Taken::NoRoom);
        }
        Ok(Taken::Queued)
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
            0 if end <= size => return Ok(Taken::Answered),
            PUNCH => true,
            ZERO if end <= size => false,
            0 | ZERO => return Err(Errno::NOSPC),
            _ => return Err(Errno::OPNOTSUPP),
        };
        // Beyond the end there is nothing to punch.
        let len = end.min(size).saturating_sub(offset);
        if len == 0 {
            return Ok(Taken::Answered);
        }
        let offset = file.start + offset;
        if !self.is_aligned(offset, len) {
            // Then the caller writes zeros.
            return Err(Errno::OPNOTSUPP);
        }
        // This can take long.
        self.shared.turns.call();
        let zero = Job::WriteZeroes { offset, len, durable: false, punch, fast: false };
        Ok(self.try_to_start(unique, Answer::Done, zero))
    }

    /// What a block device takes past the page cache.
    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        let block = u64::from(self.shared.mapping.block());
        offset.is_multiple_of(block) && len.is_multiple_of(block)
    }

    /// Puts a request that has nothing to be given back into the queue, if there is room.
    fn try_to_start(&mut self, unique: u64, answer: Answer, job: Job) -> Taken {
        self.start(unique, answer, job).map_or(Taken::NoRoom, |()| Taken::Queued)
    }

    fn start(&mut self, unique: u64, answer: Answer, job: Job) -> std::result::Result<(), Job> {
        let ticket = self.tickets.issue(Ticket { unique, answer });
        let started = self.queue.submit(ticket, job);
        if started.is_err() {
            self.tickets.redeem(ticket);
        }
        started
    }
}

impl Door for Worker {
    type Error = Error;

    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn begin_turn(&mut self) -> Result<()> {
        let held = self.shared.hold.is_held();
        if held != self.rests && (!held || self.has_nothing()) {
            self.rests = held;
            self.shared.hold.rests(held);
        }
        if !held {
            self.hears_again();
        }
        self.ended |= self.shared.cut_off.load(Ordering::Relaxed);
        Ok(())
    }

    fn take(&mut self) -> Result<Took> {
        let len = match self.held.take() {
            Some(len) => len,
            None if self.ended || self.rests || self.shared.hold.is_held() => return Ok(Took::Nothing),
            None if self.tickets.is_full() => return Ok(Took::NoRoom),
            None => match self.receive()? {
                ReceivedRequest::Request(len) => len,
                ReceivedRequest::Nothing => {
                    self.row = 0;
                    return Ok(Took::Nothing);
                }
                ReceivedRequest::Ended => {
                    self.ended = true;
                    return Ok(Took::Nothing);
                }
            },
        };
        self.row += 1;
        if self.row > STREAM || (self.row > 1 && self.last >= LONG) {
            self.shared.turns.call();
        }
        if !self.begin(len)? {
            self.held = Some(len);
            return Ok(Took::NoRoom);
        }
        // Whoever asked is answered before the kernel is asked for more: it may have nothing.
        while let Some(completion) = self.queue.next_completion() {
            self.answer(completion)?;
        }
        Ok(Took::Request(if self.tickets.is_empty() { 0 } else { len }))
    }

    fn answer(&mut self, completion: Completion) -> Result<()> {
        let Completion { tag, result, buffer } = completion;
        let Some(Ticket { unique, answer }) = self.tickets.redeem(tag) else { return Ok(()) };
        let ready = self.queue.clock();
        let sent = match (result, answer, &buffer) {
            (Ok(()), Answer::Data, Some(data)) => self.channel.reply(unique, Ok(data)),
            (Ok(()), Answer::Written(size), _) => {
                self.out.clear();
                Body(&mut self.out).written(size);
                self.channel.reply(unique, Ok(&self.out))
            }
            (Ok(()), ..) => self.channel.reply(unique, Ok(&[])),
            (Err(failure), ..) => {
                self.complaints.tell(answer.what(), &failure);
                self.channel.reply(unique, Err(errno(&failure)))
            }
        };
        self.queue.replied(ready, Instant::now());
        buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        Ok(sent?)
    }

    fn listen(&mut self, wake: Wake) -> Result<bool> {
        if self.shared.hold.is_held() {
            if !std::mem::replace(&mut self.is_deaf, true) {
                self.shared.hold.is_deaf(true);
            }
            // Whoever waits for this thread to rest is told first; whoever lets it go on may not have seen that it is deaf.
            return Ok(!self.shared.hold.is_held() || !self.rests && self.has_nothing());
        }
        if wake.requests && !self.ended {
            self.listen_or_rest()?;
        }
        Ok(false)
    }

    fn hear(&mut self) -> Result<bool> {
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
        Ok(any)
    }

    fn is_over(&self) -> bool {
        self.ended && self.has_nothing()
    }
}

impl Drop for Worker {
    /// What this thread has listened for, another must.
    fn drop(&mut self) {
        if self.watching {
            self.shared.turns.has_heard();
        }
        if self.rests {
            self.shared.hold.rests(false);
        }
        self.hears_again();
        self.shared.turns.call_all();
    }
}

/// How a file's data goes through the kernel. Who wants to go past the page cache does, without taking turns; the kernel
/// keeps both ways coherent. For the others the page cache holds what it has over closing and opening, where it may.
fn open_flags(flags: u32, cache: bool) -> u32 {
    match cache {
        _ if flags & O_DIRECT != 0 => open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES,
        true => open_flag::KEEP_CACHE,
        false => open_flag::DIRECT_IO,
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

#[expect(clippy::cast_possible_truncation, reason = "a request is shorter than the address space")]
fn to_usize(len: u64) -> usize {
    len as usize
}
