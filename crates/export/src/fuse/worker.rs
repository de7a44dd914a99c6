//! A mount's thread: takes requests from the kernel, puts them into its queue and answers them.
//!
//! ```text
//!   descriptor (channel.rs)  --+--> begin.rs --> queue --> answer --> the request's origin
//!   io_uring (entries.rs)    --+
//! ```

mod asleep;
mod begin;
mod entries;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;
use underseal_datapath::{Buffer, Completion, Queue, QueueOptions};
use underseal_device::POLLIN;
use underseal_fuse::wire::Body;
use underseal_fuse::{FuseChannel, ReceivedRequest, RingShare};

use self::asleep::Sleeper;
use self::entries::ThreadEntries;
use super::INBOX;
use super::protocol::HEAD;
use super::server::Shared;
use crate::errno::errno;
use crate::export_loop::{self, ExportLoop, Took, Wake};
use crate::failure_log::RateLimitedLog;
use crate::request_table::RequestTable;
use crate::{Error, ErrorKind, Result};

/// The most requests in flight on one thread.
const DEPTH: u32 = 128;

/// The most bytes in flight on one thread; its request memory is twice as large.
const IN_FLIGHT: usize = 16 << 20;

/// How many requests in a row must have been waiting to show that one thread is not enough. A
/// single fast client can send a few in a row.
const STREAM: u32 = 16;

/// A request of this many bytes takes long enough that the next one, if it has arrived, has waited.
const LONG: usize = 32 << 10;

/// The ring's event numbers for the descriptor and for the semaphore of resting threads. Lower
/// numbers belong to io_uring entries.
const READABLE: u32 = 1 << 31;
const WANTED: u32 = READABLE + 1;

pub(super) struct Worker {
    shared: Arc<Shared>,
    channel: Arc<FuseChannel>,
    queue: Queue,
    head: [u8; HEAD],
    /// The buffer that payloads arrive in. One of the longest writes takes the buffer along, and a
    /// new one replaces it.
    inbox: Buffer,
    /// The buffer for replies other than data.
    out: Vec<u8>,
    request_table: RequestTable<PendingRequest>,
    /// The entries that requests arrive in through io_uring, if it is used.
    entries: Option<ThreadEntries>,
    /// True when the descriptor may have a request. Without io_uring that is whenever this thread
    /// has time for one.
    readable: bool,
    /// The length of a request that has arrived and found no room.
    held: Option<usize>,
    /// The number of requests in a row that had been waiting.
    row: u32,
    sleeper: Sleeper,
    /// True when no more requests arrive, or are to be taken.
    ended: bool,
    watching: bool,
    resting: bool,
    /// True when the thread is paused for a handover.
    rests: bool,
    /// True when no request wakes the thread.
    is_deaf: bool,
    /// The bytes of the last read or write.
    last: usize,
    failure_log: RateLimitedLog,
}

/// A request in flight, and the kind of its answer.
struct PendingRequest {
    unique: u64,
    answer: Answer,
    origin: Origin,
    /// The rest of an entry's payload whose front the queue has.
    rest: Option<Buffer>,
}

/// Where a request came from, and where its reply goes.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// The descriptor: the payload is in the inbox.
    Channel,
    /// An entry of the ring.
    Entry(u32),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The data of a read, and their length.
    Data(usize),
    Written(u32),
    Done,
}

impl Answer {
    /// Names the request in log lines.
    fn what(self) -> &'static str {
        match self {
            Self::Data(_) => "a read",
            Self::Written(_) => "a write",
            Self::Done => "a flush or discard",
        }
    }
}

impl Worker {
    /// A worker for the calling thread. `share` is its part of the kernel's queues, if requests are
    /// to come through io_uring.
    pub(super) fn new(
        shared: Arc<Shared>,
        number: u16,
        channel: FuseChannel,
        share: Option<&RingShare>,
    ) -> Result<Self> {
        let no_queue = |e| Error::new(ErrorKind::Io, "no queue for the mount").with_source(e);
        let options = QueueOptions { depth: DEPTH, max_request: IN_FLIGHT };
        let mapping = shared.mapping.clone();
        let mut queue = match share {
            None => Queue::open(mapping, options),
            Some(share) => Queue::with_long_commands(mapping, options, share.entries()),
        }
        .map_err(no_queue)?;
        let inbox =
            queue.alloc(INBOX as usize).expect("a new queue's memory is free and larger than one request");
        let entries = match share {
            None => None,
            Some(share) => {
                let no_memory =
                    |e| Error::new(ErrorKind::Io, "no memory for requests of the mount").with_source(e);
                Some(ThreadEntries::new(share).map_err(no_memory)?)
            }
        };
        let channel = Arc::new(channel);
        let (crowd, own) = (shared.crowd.clone(), channel.clone());
        queue.set_outside_wakeup(move || crowd.call(number, &own));
        Ok(Self {
            shared,
            channel,
            queue,
            head: [0; HEAD],
            inbox,
            out: Vec::new(),
            request_table: RequestTable::new(DEPTH),
            entries,
            readable: true,
            held: None,
            row: 0,
            sleeper: Sleeper::new(number),
            ended: false,
            watching: false,
            resting: false,
            rests: false,
            is_deaf: false,
            last: 0,
            failure_log: RateLimitedLog::new("this thread"),
        })
    }

    /// Serves until the volume is unmounted, and finishes the requests in flight.
    pub(super) fn run(mut self) -> Result<()> {
        export_loop::serve(&mut self)
    }

    fn hears_again(&mut self) {
        if std::mem::take(&mut self.is_deaf) {
            self.shared.hold.is_deaf(false);
        }
    }

    /// Returns true when the thread has no request in flight.
    fn has_nothing(&self) -> bool {
        let waits = self.entries.as_ref().is_some_and(ThreadEntries::has_waiting);
        self.held.is_none() && self.request_table.is_empty() && !waits
    }

    /// Answers a request.
    fn reply(
        &mut self,
        unique: u64,
        origin: Origin,
        answer: std::result::Result<&[u8], Errno>,
    ) -> io::Result<()> {
        match origin {
            Origin::Channel => self.channel.reply(unique, answer),
            Origin::Entry(number) => {
                let answer = answer.and_then(|bytes| {
                    let payload = self.entries.as_mut().and_then(|entries| entries.payload(number));
                    payload
                        .and_then(|payload| payload.get_mut(..bytes.len()))
                        .ok_or(Errno::IO)?
                        .copy_from_slice(bytes);
                    Ok(bytes.len())
                });
                self.commit(number, answer)
            }
        }
    }

    /// Sends the reply in `out`, as [`reply`](Self::reply).
    fn reply_out(&mut self, unique: u64, origin: Origin) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        let sent = self.reply(unique, origin, Ok(&out));
        self.out = out;
        sent
    }

    /// Takes a request from the descriptor.
    fn take_from_channel(&mut self) -> Result<Took> {
        let len = match self.held.take() {
            Some(len) => len,
            None if self.request_table.is_full() => return Ok(Took::NoRoom),
            None => match self.receive()? {
                None => return Ok(Took::Pause),
                Some(ReceivedRequest::Request(len)) => {
                    self.note_caller();
                    len
                }
                Some(ReceivedRequest::Nothing) => {
                    self.sleeper.note(true);
                    (self.row, self.readable) = (0, !self.shared.over_io_uring.load(Ordering::Relaxed));
                    return Ok(Took::Nothing);
                }
                Some(ReceivedRequest::Ended) => {
                    self.ended = true;
                    return Ok(Took::Nothing);
                }
            },
        };
        self.row += 1;
        if self.row > STREAM || (self.row > 1 && self.last >= LONG) {
            self.shared.turns.call();
        }
        if !self.begin(Origin::Channel, len)? {
            self.held = Some(len);
            return Ok(Took::NoRoom);
        }
        // Completed requests are answered before a read of the descriptor, which may find nothing.
        while let Some(completion) = self.queue.next_completion() {
            self.answer(completion)?;
        }
        let at_once = self.request_table.is_empty();
        self.sleeper.note(at_once);
        Ok(Took::Request(if at_once { 0 } else { len }))
    }

    /// Handles one event of the ring. Returns true when the ring had one.
    fn note_event(&mut self) -> bool {
        let Some((event, result)) = self.queue.next_answer() else { return false };
        match event {
            READABLE => {
                self.watching = false;
                self.readable = true;
                self.shared.turns.has_heard();
            }
            WANTED => {
                self.resting = false;
                self.readable = true;
                self.shared.turns.is_up();
            }
            entry => self.entry_answered(entry, result),
        }
        true
    }

    /// Makes sure that the next request wakes this thread, or another one that listens already.
    fn listen_or_rest(&mut self) -> io::Result<()> {
        let turns = &self.shared.turns;
        if self.watching {
            return Ok(());
        }
        if self.request_table.is_empty() && self.others_listen() {
            if !self.resting {
                self.queue.watch(turns.as_fd(), POLLIN, WANTED)?;
                self.resting = true;
                turns.rests();
            }
            // The listening thread may have taken a request since, without seeing this one.
            if self.others_listen() {
                return Ok(());
            }
        }
        self.queue.watch(self.channel.as_fd(), POLLIN, READABLE)?;
        self.watching = true;
        turns.listens();
        Ok(())
    }
}

impl ExportLoop for Worker {
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
        if let Some(took) = self.take_from_entries()? {
            return Ok(took);
        }
        if self.held.is_none() && (self.ended || self.rests || !self.readable || self.shared.hold.is_held()) {
            return Ok(Took::Nothing);
        }
        self.take_from_channel()
    }

    fn answer(&mut self, completion: Completion) -> Result<()> {
        let Completion { tag, result, buffer } = completion;
        let Some(PendingRequest { unique, answer, origin, rest }) = self.request_table.remove(tag) else {
            return Ok(());
        };
        let ready = self.queue.clock();
        let mut buffer = buffer;
        let read_into = rest.is_some();
        if let (Origin::Entry(number), Some(rest)) = (origin, rest) {
            self.payload_is_back(number, buffer.take(), rest)?;
        }
        let sent = match (result, answer, &buffer) {
            (Ok(()), Answer::Data(len), None) if read_into => self.commit_read(origin, len),
            (Ok(()), Answer::Data(_), Some(data)) => self.reply(unique, origin, Ok(data)),
            (Ok(()), Answer::Written(size), _) => {
                self.out.clear();
                Body(&mut self.out).written(size);
                self.reply_out(unique, origin)
            }
            (Ok(()), ..) => self.reply(unique, origin, Ok(&[])),
            (Err(failure), ..) => {
                self.failure_log.tell(answer.what(), &failure);
                self.reply(unique, origin, Err(errno(&failure)))
            }
        };
        self.queue.replied(ready, Instant::now());
        buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        Ok(sent?)
    }

    fn is_due(&self) -> bool {
        self.entries.as_ref().is_some_and(ThreadEntries::is_due)
    }

    /// Submits pending replies through io_uring if they are due; otherwise the sleep submits them.
    fn hand_over(&mut self) -> Result<bool> {
        if self.is_due() {
            self.queue.poll()?;
            self.handed_over();
        }
        Ok(true)
    }

    fn listen(&mut self, wake: Wake) -> Result<bool> {
        if self.shared.hold.is_held() {
            if !std::mem::replace(&mut self.is_deaf, true) {
                self.shared.hold.is_deaf(true);
            }
            // Returns before the sleep while the threads are to pause, and once after a resume:
            // `go_on` may have missed that this thread cannot be woken by a request.
            return Ok(!self.shared.hold.is_held() || !self.rests && self.has_nothing());
        }
        if wake.requests && !self.ended {
            self.listen_or_rest()?;
        }
        self.handed_over();
        Ok(false)
    }

    fn hear(&mut self) -> Result<bool> {
        let mut any = false;
        while self.note_event() {
            any = true;
        }
        if any {
            self.has_woken();
        }
        Ok(any)
    }

    fn is_over(&self) -> bool {
        let live = self.entries.as_ref().is_some_and(ThreadEntries::are_live);
        let leaves = !live || self.shared.cut_off.load(Ordering::Relaxed);
        self.ended && leaves && self.has_nothing()
    }
}

impl Drop for Worker {
    /// Another thread must listen in place of this one.
    fn drop(&mut self) {
        if self.watching {
            self.shared.turns.has_heard();
        }
        if self.rests {
            self.shared.hold.rests(false);
        }
        self.hears_again();
        self.leave();
        self.shared.turns.call_all();
    }
}
