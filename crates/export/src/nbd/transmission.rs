//! The transmission phase: one connection, one queue, one thread.
//!
//! ```text
//!   Wire --> Inbox --parse--> Queue (Tickets remember what to answer) --> Outbox --> Wire
//!            small writes are encrypted where they arrived;      replies go out together,
//!            a large one is received into memory of its own      bodies from where they were decrypted
//! ```
//!
//! The thread waits in one place, the queue's ring, for the lower device and for the socket.

mod answer;
mod busy_poll;
mod inbox;
mod outbox;
mod wire;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use underseal_datapath::{Buffer, Completion, Full, Mapping, Queue, QueueOptions, Request as Job};

use self::busy_poll::BusyPoll;
use self::inbox::{IN_PLACE, Inbox};
use self::outbox::Outbox;
use self::wire::Wire;
use super::protocol::{Command, CommandFlags, Errno, REQUEST_LEN, Request};
use super::{Connection, ConnectionHandler, Negotiated, StopSignal};
use crate::complaints::Complaints;
use crate::net::Peer;
use crate::tickets::Tickets;
use crate::{Error, ErrorKind, Result};

/// Requests in flight on one connection.
const DEPTH: u32 = 128;

/// The longest payload: what clients may count on that did not ask (proto.md, "Block size constraints").
pub const MAX_PAYLOAD: u32 = super::protocol::DEFAULT_MAX_PAYLOAD;

/// Replies are sent as soon as they amount to this many bytes, so that the client works on them meanwhile.
const SEND_AT: usize = 128 << 10;

/// Requests that came together and show a client that does not wait for replies.
const STREAM: usize = 3;

/// Numbers of the socket's events in the queue's ring.
const READABLE: u32 = 0;
const WRITABLE: u32 = 1;

/// Serves volumes to connections, each with a queue of its own.
pub struct VolumeHandler {
    mappings: Vec<Arc<Mapping>>,
    busy_poll: Duration,
}

impl VolumeHandler {
    /// Serves `mappings`, in the order of the server's exports.
    pub fn new(mappings: Vec<Arc<Mapping>>) -> Self {
        Self { mappings, busy_poll: Duration::ZERO }
    }

    /// Lets idle connections look at their sockets for so long before they sleep: latency for processor time.
    #[must_use]
    pub fn with_busy_poll(mut self, limit: Duration) -> Self {
        self.busy_poll = limit;
        self
    }
}

impl ConnectionHandler for VolumeHandler {
    fn serve(&self, connection: Connection) -> Result<()> {
        let Connection { transport, negotiated, peer, stop, .. } = connection;
        let mapping = self.mappings.get(negotiated.export).ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("export {} has no volume", negotiated.export))
        })?;
        let options = QueueOptions { depth: DEPTH, max_request: MAX_PAYLOAD as usize };
        let queue = Queue::open(mapping.clone(), options)
            .map_err(|e| Error::new(ErrorKind::Io, "no queue for the connection").with_source(e))?;
        Transmission::new(
            mapping.clone(),
            queue,
            Wire::new(transport),
            negotiated,
            peer,
            stop,
            BusyPoll::new(self.busy_poll),
        )
        .run()
    }
}

struct Transmission {
    mapping: Arc<Mapping>,
    queue: Queue,
    wire: Wire,
    negotiated: Negotiated,
    peer: Peer,
    stop: StopSignal,
    inbox: Inbox,
    outbox: Outbox,
    tickets: Tickets<Request>,
    /// A payload that is being received past the inbox.
    payload: Option<Payload>,
    /// The next header is received alone, because a large write came last and its like may follow.
    header_alone: bool,
    /// The socket may hold bytes that were not received yet.
    readable: bool,
    /// No more requests will be taken.
    closing: bool,
    watching: [bool; 2],
    busy_poll: BusyPoll,
    complaints: Complaints,
}

/// The rest of a large write, or of one that is refused but whose payload still has to come in.
struct Payload {
    request: Request,
    filled: usize,
    /// Where it goes; without memory it is thrown away and `refused` is the answer.
    into: std::result::Result<Buffer, Errno>,
}

/// Why no more requests are taken for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Replies should go out; there is more to take.
    More,
    /// Nothing more has arrived.
    Drained,
    /// There is no room: requests in flight or replies have to go first.
    Stalled,
}

/// What became of the next request in the inbox.
#[derive(PartialEq, Eq)]
enum Taken {
    /// It is under way or answered.
    Yes,
    /// Not all of it has arrived.
    NeedsBytes,
    /// The queue has no room: completions come first.
    NeedsRoom,
}

impl Transmission {
    fn new(
        mapping: Arc<Mapping>,
        queue: Queue,
        wire: Wire,
        negotiated: Negotiated,
        peer: Peer,
        stop: StopSignal,
        busy_poll: BusyPoll,
    ) -> Self {
        Self {
            mapping,
            queue,
            wire,
            negotiated,
            peer,
            stop,
            inbox: Inbox::new(),
            outbox: Outbox::new(DEPTH as usize),
            tickets: Tickets::new(DEPTH),
            payload: None,
            header_alone: false,
            readable: true,
            closing: false,
            watching: [false; 2],
            busy_poll,
            complaints: Complaints::new("this connection"),
        }
    }

    /// Serves requests until the client leaves or the server stops; what is in flight is finished and answered.
    fn run(mut self) -> Result<()> {
        loop {
            self.closing |= self.stop.is_stopping();
            let pace = self.take_requests()?;
            self.queue.poll()?;
            let all = self.take_completions()?;
            let sent = self.outbox.send(&mut self.wire, &mut self.queue)?;
            if self.closing && self.tickets.is_empty() && sent {
                // The client may be gone already: it has had every reply.
                let _ = self.wire.finish();
                return Ok(());
            }
            let idle = match pace {
                Pace::More => self.closing,
                Pace::Drained => true,
                // What nothing in flight and no reply can end was ended by the replies just sent.
                Pace::Stalled => self.queue.in_flight() > 0 || !sent,
            };
            // The client may have made room just now: then nothing would wake this thread for the replies that are left.
            if idle && (all || !sent) {
                self.wait(pace == Pace::Drained && !self.closing, !sent)?;
            }
        }
    }

    /// Waits for the lower device or the socket.
    fn wait(&mut self, readable: bool, writable: bool) -> Result<()> {
        const POLLIN: i16 = 1;
        const POLLOUT: i16 = 4;
        // What came while the thread was at work has changed what there is to do.
        if self.take_events() || (readable && !writable && self.look()?) {
            return Ok(());
        }
        for (number, wanted, events) in [(READABLE, readable, POLLIN), (WRITABLE, writable, POLLOUT)] {
            let watching = &mut self.watching[number as usize];
            if wanted && !*watching {
                self.queue.watch(self.wire.as_fd(), events, number)?;
                *watching = true;
            }
        }
        self.queue.wait()?;
        self.take_events();
        Ok(())
    }

    /// Looks for the next request before sleeping, when that is likely to pay. True when something came.
    fn look(&mut self) -> Result<bool> {
        if self.queue.in_flight() > 0 || !self.busy_poll.idle() {
            return Ok(false);
        }
        while self.busy_poll.goes_on() {
            if self.receive()? {
                self.queue.woken();
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes which descriptors have become ready. True when one has.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(number) = self.queue.next_event() {
            self.watching[number as usize] = false;
            self.readable |= number == READABLE;
            any = true;
        }
        any
    }

    /// Takes in what the client has sent, until replies should go out first.
    fn take_requests(&mut self) -> Result<Pace> {
        let mut taken = 0;
        while !self.closing {
            if self.outbox.is_full() {
                return Ok(Pace::Stalled);
            }
            let next = match self.payload.take() {
                Some(payload) => self.take_payload(payload)?,
                None => self.take_request()?,
            };
            match next {
                Taken::NeedsRoom => return Ok(Pace::Stalled),
                Taken::Yes => {
                    taken += 1;
                    while let Some(completion) = self.queue.next_ready() {
                        self.redeem(completion);
                    }
                    if self.outbox.bytes() >= SEND_AT {
                        return Ok(Pace::More);
                    }
                }
                Taken::NeedsBytes if !self.readable => {
                    // So many came at once that more has come since, most likely: asking costs less than waiting.
                    self.readable = taken >= STREAM;
                    return Ok(if self.readable { Pace::More } else { Pace::Drained });
                }
                // What is answered goes out before the socket is asked for more.
                Taken::NeedsBytes if taken > 0 && self.has_work() => return Ok(Pace::More),
                Taken::NeedsBytes => {
                    self.receive()?;
                }
            }
        }
        Ok(Pace::Drained)
    }

    /// Receives into the inbox or the payload under way. True when something came, be it the end.
    fn receive(&mut self) -> Result<bool> {
        let (wanted, received) = match &mut self.payload {
            Some(Payload { into: Ok(buffer), filled, .. }) => {
                let rest = &mut buffer[*filled..];
                (rest.len(), self.wire.receive(rest).inspect(|n| *filled += n))
            }
            _ => {
                let most = if self.header_alone && self.inbox.is_empty() { REQUEST_LEN } else { usize::MAX };
                (most, self.inbox.fill(&mut self.wire, most))
            }
        };
        match received {
            Ok(0) => {
                self.closing = true;
                if !self.inbox.is_empty() || self.payload.is_some() {
                    log::info!("{}: left in the middle of a request", self.peer);
                }
            }
            Ok(n) => {
                self.busy_poll.came();
                self.readable = n == wanted || self.wire.may_hold_more();
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(false);
            }
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    fn take_request(&mut self) -> Result<Taken> {
        let Some(header) = self.inbox.header() else { return Ok(Taken::NeedsBytes) };
        let request = Request::parse(header)
            .map_err(|e| Error::new(ErrorKind::Protocol, "the client lost the thread").with_source(e))?;
        if self.tickets.is_full() {
            return Ok(Taken::NeedsRoom);
        }
        if request.command == Command::Write {
            return Ok(self.take_write(request));
        }
        let taken = if request.command == Command::Disconnect {
            self.closing = true;
            Taken::Yes
        } else {
            self.start(request)
        };
        if taken == Taken::Yes {
            self.inbox.take(REQUEST_LEN);
        }
        Ok(taken)
    }

    /// Starts a write whose header is in the inbox.
    fn take_write(&mut self, request: Request) -> Taken {
        let len = request.length as usize;
        let refused = self.refuse(&request).or_else(|| self.refuse_write(&request));
        if refused.is_none() && len <= IN_PLACE {
            let Some(data) = self.inbox.payload(len) else { return Taken::NeedsBytes };
            let durable = request.flags.contains(CommandFlags::FUA);
            let ticket = self.tickets.issue(request);
            if self.queue.write_in_place(ticket, request.offset, data, durable) == Err(Full) {
                self.tickets.redeem(ticket);
                return Taken::NeedsRoom;
            }
            self.inbox.take(REQUEST_LEN + len);
            return Taken::Yes;
        }
        let into = match refused {
            Some(errno) => Err(errno),
            None => match self.queue.alloc(len) {
                Some(buffer) => Ok(buffer),
                None => return Taken::NeedsRoom,
            },
        };
        self.inbox.take(REQUEST_LEN);
        self.payload = Some(Payload { request, filled: 0, into });
        Taken::Yes
    }

    /// Moves a payload on: from the inbox first, then straight from the socket.
    fn take_payload(&mut self, mut payload: Payload) -> Result<Taken> {
        let len = payload.request.length as usize;
        let arrived = self.inbox.take(len - payload.filled);
        if let Ok(buffer) = &mut payload.into {
            buffer[payload.filled..payload.filled + arrived.len()].copy_from_slice(arrived);
        }
        payload.filled += arrived.len();
        if payload.filled < len {
            self.payload = Some(payload);
            return Ok(Taken::NeedsBytes);
        }
        if self.tickets.is_full() {
            self.payload = Some(payload);
            return Ok(Taken::NeedsRoom);
        }
        let request = payload.request;
        match payload.into {
            Err(errno) => self.answer_error(&request, errno, "refused"),
            Ok(data) => {
                self.header_alone = true;
                let durable = request.flags.contains(CommandFlags::FUA);
                let ticket = self.tickets.issue(request);
                let write = Job::Write { offset: request.offset, data, durable };
                if let Err(Job::Write { data, .. }) = self.queue.submit(ticket, write) {
                    self.tickets.redeem(ticket);
                    self.payload = Some(Payload { request, filled: len, into: Ok(data) });
                    return Ok(Taken::NeedsRoom);
                }
            }
        }
        Ok(Taken::Yes)
    }

    /// Starts a request that has no payload.
    fn start(&mut self, request: Request) -> Taken {
        self.header_alone = false;
        if let Some(errno) = self.refuse(&request) {
            self.answer_error(&request, errno, "not a request that this export takes");
            return Taken::Yes;
        }
        let (offset, len) = (request.offset, u64::from(request.length));
        let has = |flag| request.flags.contains(flag);
        let durable = has(CommandFlags::FUA);
        let job = match request.command {
            Command::Read => Job::Read { offset, len: request.length as usize },
            Command::Flush => Job::Flush,
            Command::Trim => Job::Discard { offset, len, durable },
            Command::Cache => Job::Prefetch { offset, len },
            Command::WriteZeroes => {
                let (punch, fast) = (!has(CommandFlags::NO_HOLE), has(CommandFlags::FAST_ZERO));
                Job::WriteZeroes { offset, len, durable, punch, fast }
            }
            Command::BlockStatus => return self.answer_block_status(&request),
            Command::Write | Command::Disconnect | Command::Other(_) => return Taken::Yes,
        };
        let ticket = self.tickets.issue(request);
        if self.queue.submit(ticket, job).is_err() {
            self.tickets.redeem(ticket);
            return Taken::NeedsRoom;
        }
        Taken::Yes
    }

    /// Answers what is over; the client gets its replies while the queue works on the rest. False when some is left, because
    /// the client takes no more.
    fn take_completions(&mut self) -> Result<bool> {
        while let Some(completion) = self.queue.next_completion() {
            self.redeem(completion);
            if self.outbox.bytes() >= SEND_AT && !self.outbox.send(&mut self.wire, &mut self.queue)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn redeem(&mut self, completion: Completion) {
        if let Some(request) = self.tickets.redeem(completion.tag) {
            self.answer(&request, completion);
        }
    }

    /// Something is to be sent, or to be done before.
    fn has_work(&self) -> bool {
        !self.outbox.is_empty() || self.queue.has_backlog()
    }
}
