//! One thread: it takes requests from the kernel, puts them into its queue and answers them.
//!
//! ```text
//!   descriptor (channel.rs)  --+--> begin.rs  -->  queue  -->  answer  --> where the request came from
//!   io_uring (entries.rs)    --+
//! ```

mod begin;
mod entries;

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;
use underseal_datapath::{Buffer, Completion, Queue, QueueOptions};
use underseal_device::POLLIN;
use underseal_fuse::wire::Body;
use underseal_fuse::{FuseChannel, ReceivedRequest, RingShare};

use self::entries::ThreadEntries;
use super::INBOX;
use super::protocol::HEAD;
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

/// Requests that were there one after the other and show that one thread is not enough. A lone
/// client that is quick can send a few.
const STREAM: u32 = 16;

/// After a request of so many bytes another one that is there already has waited.
const LONG: usize = 32 << 10;

/// The ring's numbers for the descriptor and for the bell of those that rest. Lower numbers are
/// those of entries.
const READABLE: u32 = 1 << 31;
const WANTED: u32 = READABLE + 1;

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
    /// Where requests arrive through io_uring, if they do.
    entries: Option<ThreadEntries>,
    /// The descriptor may have a request. Without io_uring that is so whenever this thread has time
    /// for one.
    readable: bool,
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
    origin: Origin,
    /// The rest of an entry's payload, whose front the queue has.
    rest: Option<Buffer>,
}

/// Where a request came from, and its reply goes.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// The descriptor: the payload is in the inbox.
    Channel,
    /// An entry of the ring.
    Entry(u32),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The bytes that were read, and their count.
    Data(usize),
    Written(u32),
    Done,
}

impl Answer {
    /// What was asked for, in the operator's words.
    fn what(self) -> &'static str {
        match self {
            Self::Data(_) => "a read",
            Self::Written(_) => "a write",
            Self::Done => "a flush or discard",
        }
    }
}

impl Worker {
    /// The calling thread's. `share`: its part of the kernel's queues, where requests are to come
    /// through io_uring.
    ///
    /// # Errors
    /// `Io` when the system has no ring or memory for its queue.
    pub(super) fn new(shared: Arc<Shared>, channel: FuseChannel, share: Option<&RingShare>) -> Result<Self> {
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
        Ok(Self {
            shared,
            channel,
            queue,
            head: [0; HEAD],
            inbox,
            out: Vec::new(),
            tickets: Tickets::new(DEPTH),
            entries,
            readable: true,
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
        let waits = self.entries.as_ref().is_some_and(ThreadEntries::has_waiting);
        self.held.is_none() && self.tickets.is_empty() && !waits
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

    /// As [`reply`](Self::reply), with what `out` has.
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
            None if self.tickets.is_full() => return Ok(Took::NoRoom),
            None => match self.receive()? {
                ReceivedRequest::Request(len) => len,
                ReceivedRequest::Nothing => {
                    (self.row, self.readable) = (0, !self.shared.over_io_uring.load(Ordering::Relaxed));
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
        if !self.begin(Origin::Channel, len)? {
            self.held = Some(len);
            return Ok(Took::NoRoom);
        }
        // Whoever asked is answered before the kernel is asked for more: it may have nothing.
        while let Some(completion) = self.queue.next_completion() {
            self.answer(completion)?;
        }
        Ok(Took::Request(if self.tickets.is_empty() { 0 } else { len }))
    }

    /// Notes an event of the ring's. True when it was one.
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
        let Some(Ticket { unique, answer, origin, rest }) = self.tickets.redeem(tag) else { return Ok(()) };
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
                self.complaints.tell(answer.what(), &failure);
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

    /// Replies through io_uring are handed over when the thread sleeps, unless they are due before.
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
            // Whoever waits for this thread to rest is told first; whoever lets it go on may not
            // have seen that it is deaf.
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
