//! The start of a request: a FUSE operation becomes a request of the queue, or is answered at once.

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use underseal_datapath::{Buffer, Full, Request as Job};
use underseal_fuse::wire::{Body, open_flag};

use super::super::protocol::{self, Call, Operation};
use super::super::server::Shared;
use super::{Answer, Origin, PendingRequest, Worker};
use crate::{Error, ErrorKind, Result};

/// Open flags as the kernel passes them on.
const O_DIRECT: u32 = OFlags::DIRECT.bits();
const O_DSYNC: u32 = OFlags::DSYNC.bits();

/// A longer write in an entry's payload is submitted with its memory: if the lower device blocks,
/// no copy is needed.
const SHORT: usize = 64 << 10;

/// The result of starting a request: `out` has the answer, the queue has the request, or no room is
/// left.
#[derive(Debug, Clone, Copy)]
enum Taken {
    Answered,
    Queued,
    NoRoom,
}

type Answered = std::result::Result<Taken, Errno>;

/// A request's number for its reply, and its origin.
#[derive(Debug, Clone, Copy)]
struct Asked {
    unique: u64,
    origin: Origin,
}

impl Worker {
    /// Starts the request of `len` bytes that has arrived. Returns false when no room is left.
    pub(super) fn begin(&mut self, origin: Origin, len: usize) -> Result<bool> {
        self.out.clear();
        let head = self.head;
        let Some(Call { unique, node, operation }) = protocol::parse(&head, len) else {
            return Err(Error::new(ErrorKind::Protocol, "the kernel sent a request that makes no sense"));
        };
        let asked = Asked { unique, origin };
        let answered = match operation {
            Operation::Silent => return Ok(true),
            Operation::Wake => {
                self.shared.crowd.pass_on(&self.channel);
                return Ok(true);
            }
            Operation::Read { offset, size } => self.read(asked, node, offset, size),
            Operation::Write { offset, size, flags } => self.write(asked, node, offset, size, flags),
            Operation::Fsync => Ok(self.try_to_start(asked, Answer::Done, Job::Flush)),
            Operation::Fallocate { offset, len, mode } => self.fallocate(asked, node, offset, len, mode),
            Operation::ReadDir { offset, size } => {
                self.shared.files.list(offset, size as usize, &mut self.out);
                Ok(Taken::Answered)
            }
            other => self.at_once(node, other),
        };
        match answered {
            Ok(Taken::Queued) => {}
            Ok(Taken::NoRoom) => return Ok(false),
            Ok(Taken::Answered) => self.reply_out(unique, origin)?,
            Err(errno) => self.reply(unique, origin, Err(errno))?,
        }
        Ok(true)
    }

    /// Answers an operation that needs no I/O.
    fn at_once(&mut self, node: u64, operation: Operation<'_>) -> Answered {
        let Shared { files, attributes_valid, .. } = &*self.shared;
        let mut body = Body(&mut self.out);
        let attr = || files.attr(node).ok_or(Errno::NOENT);
        match operation {
            Operation::Lookup { name } => {
                match files.lookup(node, name) {
                    Some(attr) => body.entry(attr.ino, &attr),
                    None => body.no_entry(),
                };
            }
            Operation::GetAttr => _ = body.attributes(&attr()?, *attributes_valid),
            Operation::SetAttr { valid, size } => {
                let attr = attr()?;
                settable(valid, size, attr.size)?;
                body.attributes(&attr, *attributes_valid);
            }
            Operation::Open { flags } => _ = body.opened(0, open_flags(flags, self.shared.cache)),
            Operation::OpenDir => _ = body.opened(0, 0),
            Operation::StatFs => _ = body.statfs(&files.totals(), 255),
            Operation::Done => {}
            // After ENOSYS the kernel does not send the operation again: extended attributes,
            // flushes on close.
            _ => return Err(Errno::NOSYS),
        }
        Ok(Taken::Answered)
    }

    fn read(&mut self, asked: Asked, node: u64, offset: u64, size: u32) -> Answered {
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        // Page-sized reads may extend past the end.
        let len = (file.end - file.start).saturating_sub(offset).min(size.into());
        if len == 0 {
            return Ok(Taken::Answered);
        }
        self.last = to_usize(len);
        let (offset, len) = (file.start + offset, to_usize(len));
        let sector = u64::from(self.shared.mapping.sector());
        if let Origin::Entry(number) = asked.origin
            && offset.is_multiple_of(sector)
            && (len as u64).is_multiple_of(sector)
        {
            let Some((data, rest)) = self.take_payload(number, len) else { return Err(Errno::IO) };
            return Ok(self.start_with(asked, Answer::Data(len), Job::ReadInto { offset, data }, rest));
        }
        Ok(self.try_to_start(asked, Answer::Data(len), Job::Read { offset, len }))
    }

    fn write(&mut self, asked: Asked, node: u64, offset: u64, size: u32, flags: u32) -> Answered {
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
        if let Origin::Entry(number) = asked.origin {
            let Some((mut data, rest)) = self.take_payload(number, len) else { return Err(Errno::IO) };
            if len > SHORT || durable {
                let write = Job::Write { offset, data, durable };
                return Ok(self.start_with(asked, Answer::Written(size), write, rest));
            }
            let cookie = self.cookie(asked, Answer::Written(size));
            let taken = self.queue.write_in_place(cookie, offset, &mut data, durable);
            self.put_back(number, (data, rest));
            return Ok(self.taken(cookie, taken));
        }
        if len == self.inbox.len()
            && let Some(fresh) = self.queue.alloc(len)
        {
            let data = std::mem::replace(&mut self.inbox, fresh);
            let write = Job::Write { offset, data, durable };
            return Ok(match self.start(asked, Answer::Written(size), write) {
                Ok(()) => Taken::Queued,
                Err(back) => {
                    if let Job::Write { data, .. } = back {
                        self.queue.free(std::mem::replace(&mut self.inbox, data));
                    }
                    Taken::NoRoom
                }
            });
        }
        let cookie = self.cookie(asked, Answer::Written(size));
        let taken = self.queue.write_in_place(cookie, offset, &mut self.inbox[..len], durable);
        Ok(self.taken(cookie, taken))
    }

    fn taken(&mut self, cookie: u64, taken: std::result::Result<(), Full>) -> Taken {
        match taken {
            Ok(()) => Taken::Queued,
            Err(Full) => {
                self.request_table.remove(cookie);
                Taken::NoRoom
            }
        }
    }

    fn fallocate(&mut self, asked: Asked, node: u64, offset: u64, len: u64, mode: u32) -> Answered {
        const KEEP_SIZE: u32 = FallocateFlags::KEEP_SIZE.bits();
        const PUNCH: u32 = FallocateFlags::PUNCH_HOLE.bits();
        const ZERO: u32 = FallocateFlags::ZERO_RANGE.bits();
        let file = self.shared.files.range(node).ok_or(Errno::ISDIR)?;
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let size = file.end - file.start;
        let punch = match mode & !KEEP_SIZE {
            // The whole volume is allocated.
            0 if end <= size => return Ok(Taken::Answered),
            PUNCH => true,
            ZERO if end <= size => false,
            0 | ZERO => return Err(Errno::NOSPC),
            _ => return Err(Errno::OPNOTSUPP),
        };
        // Beyond the end no hole can be punched.
        let len = end.min(size).saturating_sub(offset);
        if len == 0 {
            return Ok(Taken::Answered);
        }
        let offset = file.start + offset;
        if !self.is_aligned(offset, len) {
            // After this error the caller writes zeros.
            return Err(Errno::OPNOTSUPP);
        }
        // A discard can take long.
        self.shared.turns.call();
        let zero = Job::WriteZeroes { offset, len, durable: false, punch, fast: false };
        Ok(self.try_to_start(asked, Answer::Done, zero))
    }

    /// Returns true when a block device accepts the range for direct I/O.
    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        let block = u64::from(self.shared.mapping.block());
        offset.is_multiple_of(block) && len.is_multiple_of(block)
    }

    /// Submits a request without memory of an entry, if the queue has room.
    fn try_to_start(&mut self, asked: Asked, answer: Answer, job: Job) -> Taken {
        self.start(asked, answer, job).map_or(Taken::NoRoom, |()| Taken::Queued)
    }

    /// Submits a request whose memory is the front of an entry's payload, as
    /// [`start`](Self::start).
    fn start_with(&mut self, asked: Asked, answer: Answer, job: Job, rest: Buffer) -> Taken {
        let Asked { unique, origin } = asked;
        let cookie = self.request_table.insert(PendingRequest { unique, answer, origin, rest: Some(rest) });
        let Err(back) = self.queue.submit(cookie, job) else { return Taken::Queued };
        if let (Job::Write { data, .. } | Job::ReadInto { data, .. }, Origin::Entry(number)) = (back, origin)
            && let Some(PendingRequest { rest: Some(rest), .. }) = self.request_table.remove(cookie)
        {
            self.put_back(number, (data, rest));
        }
        Taken::NoRoom
    }

    fn start(&mut self, asked: Asked, answer: Answer, job: Job) -> std::result::Result<(), Job> {
        let cookie = self.cookie(asked, answer);
        let started = self.queue.submit(cookie, job);
        if started.is_err() {
            self.request_table.remove(cookie);
        }
        started
    }

    fn cookie(&mut self, Asked { unique, origin }: Asked, answer: Answer) -> u64 {
        self.request_table.insert(PendingRequest { unique, answer, origin, rest: None })
    }
}

/// Returns the flags for an open file. Direct I/O bypasses the page cache, with parallel writes;
/// the kernel keeps both kinds of I/O coherent. For other files the page cache keeps its pages over
/// close and open, if `cache` permits.
fn open_flags(flags: u32, cache: bool) -> u32 {
    match cache {
        _ if flags & O_DIRECT != 0 => open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES,
        true => open_flag::KEEP_CACHE,
        false => open_flag::DIRECT_IO,
    }
}

/// Checks a change of a file's attributes. As with a block device, truncating the file when it is
/// opened has no effect, and neither have new times.
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
