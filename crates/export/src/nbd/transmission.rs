//! The transmission phase: one connection, one queue, one thread.
//!
//! ```text
//!   Wire --> Inbox --parse--> Queue (`RequestTable` keeps the requests) --> Outbox --> Wire
//!            small writes are encrypted in the inbox;    replies are sent together,
//!            large ones get memory of their own          bodies from where they were decrypted
//! ```
//!
//! The thread waits in one place, the queue's ring, for the lower device and for the socket.

mod answer;
mod inbox;
mod outbox;
mod pause;
mod take;
mod wire;

use std::hint::spin_loop;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use underseal_datapath::{Completion, Mapping, Queue, QueueOptions};
use underseal_device::{POLLIN, POLLOUT, POLLRDHUP};

use self::inbox::Inbox;
use self::outbox::Outbox;
use self::pause::Rest;
use self::take::{Payload, Taken};
use self::wire::Wire;
use super::protocol::RequestHeader;
use super::{Begun, Connection, ConnectionHandler, Negotiated, Passage, StopSignal};
use crate::export_loop::{self, ExportLoop, Took, Wake};
use crate::failure_log::RateLimitedLog;
use crate::net::Peer;
use crate::request_table::RequestTable;
use crate::{Error, ErrorKind, Result};

/// The most requests in flight on one connection.
const DEPTH: u32 = 128;

/// The longest payload: the protocol's default for clients that do not ask (proto.md, "Block size
/// constraints").
pub const MAX_PAYLOAD: u32 = super::protocol::DEFAULT_MAX_PAYLOAD;

/// Replies are sent as soon as they amount to this many bytes, so that the client works on them
/// while the server prepares further ones.
const SEND_AT: usize = 128 << 10;

/// The number of requests in one turn which shows that a client does not wait for replies.
const STREAM: usize = 3;

/// The number of spin hints before a receive that looks for requests: about half a microsecond.
const PAUSE: u32 = 32;

/// The time between two looks whether a request may be taken that has to wait for requests of other
/// connections.
const HELD: Duration = Duration::from_micros(100);

/// The event numbers of the socket in the queue's ring.
const READABLE: u32 = 0;
const WRITABLE: u32 = 1;
/// The client has closed its side, behind bytes that are not received yet.
const CLOSED: u32 = 2;

/// Serves volumes to connections, each with its queue.
pub struct VolumeHandler {
    mappings: Vec<Arc<Mapping>>,
}

impl VolumeHandler {
    /// A handler for `mappings`, in the order of the server's exports.
    pub fn new(mappings: Vec<Arc<Mapping>>) -> Self {
        Self { mappings }
    }
}

impl ConnectionHandler for VolumeHandler {
    fn size(&self, export: usize) -> Option<u64> {
        self.mappings.get(export).map(|mapping| mapping.size())
    }

    fn rouse(&self) {
        self.mappings.iter().for_each(|mapping| mapping.rouse());
    }

    fn serve(&self, connection: Connection) -> Result<()> {
        let Connection { transport, negotiated, peer, stop, begun } = connection;
        let mapping = self.mappings.get(negotiated.export).ok_or_else(|| {
            Error::new(ErrorKind::Protocol, format!("export {} has no volume", negotiated.export))
        })?;
        let options = QueueOptions { depth: DEPTH, max_request: MAX_PAYLOAD as usize };
        let queue = Queue::open(mapping.clone(), options)
            .map_err(|e| Error::new(ErrorKind::Io, "no queue for the connection").with_source(e))?;
        let (wire, passage) = match begun {
            Some(Begun { ahead, owed, passage }) => (Wire::carried(transport, ahead, owed), Some(passage)),
            None => (Wire::new(transport), None),
        };
        let served = Transmission::new(mapping.clone(), queue, wire, negotiated, peer, stop)?;
        match passage.is_none_or(Passage::wait) {
            true => served.run(),
            false => Ok(()),
        }
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
    request_table: RequestTable<RequestHeader>,
    /// A payload that is being received past the inbox.
    payload: Option<Payload>,
    /// True when the next header is received alone: after a large write, another one may follow.
    header_alone: bool,
    /// True when the socket may hold bytes that are not received yet.
    readable: bool,
    /// True when the requests received so far need not wait for those of another connection.
    may_change: bool,
    /// Requests of this turn.
    taken: usize,
    /// True when no more requests will be taken.
    closing: bool,
    rest: Rest,
    watching: [bool; 3],
    failure_log: RateLimitedLog,
}

impl Transmission {
    fn new(
        mapping: Arc<Mapping>,
        queue: Queue,
        wire: Wire,
        negotiated: Negotiated,
        peer: Peer,
        stop: StopSignal,
    ) -> Result<Self> {
        Ok(Self {
            mapping,
            queue,
            wire,
            negotiated,
            peer,
            stop,
            inbox: Inbox::new()?,
            outbox: Outbox::new(DEPTH as usize),
            request_table: RequestTable::new(DEPTH),
            payload: None,
            header_alone: false,
            readable: true,
            may_change: false,
            taken: 0,
            closing: false,
            rest: Rest::No,
            watching: [false; 3],
            failure_log: RateLimitedLog::new("this connection"),
        })
    }

    /// Serves requests until the client disconnects or the server stops; requests in flight are
    /// finished and answered.
    fn run(mut self) -> Result<()> {
        // Dropping the queue waits for its requests.
        export_loop::serve(&mut self).inspect_err(|_| self.queue.abandon())?;
        // The client may have disconnected after the last reply.
        let _ = self.wire.finish();
        Ok(())
    }

    /// Notes that the client has closed its side. Without a request to disconnect it does not wait
    /// for answers, and its requests in flight are given up.
    fn is_left(&mut self) {
        // A server that stops shuts the reading side down itself.
        if !self.closing && !self.stop.is_stopping() {
            self.queue.abandon();
        }
        self.closing = true;
    }

    /// Returns true when replies are to be sent, or crypto work is to be done before.
    fn has_work(&self) -> bool {
        !self.outbox.is_empty() || self.queue.has_backlog()
    }
}

impl ExportLoop for Transmission {
    type Error = Error;

    const LOOKS: bool = true;

    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn begin_turn(&mut self) -> Result<()> {
        self.closing |= self.stop.is_stopping();
        self.look_for_rest();
        self.taken = 0;
        Ok(())
    }

    /// Takes a request. A turn has no more bytes than the inbox, so it need not count them.
    fn take(&mut self) -> Result<Took> {
        while !self.closing {
            if self.rests() {
                return Ok(Took::Nothing);
            }
            if self.outbox.is_full() {
                return Ok(Took::NoRoom);
            }
            if self.payload.is_none() && self.is_held() {
                std::thread::sleep(HELD);
                return Ok(Took::Pause);
            }
            let next = match self.payload.take() {
                Some(payload) => self.take_payload(payload)?,
                None => self.take_request()?,
            };
            match next {
                Taken::NeedsRoom => return Ok(Took::NoRoom),
                Taken::Yes => {
                    self.taken += 1;
                    return Ok(Took::Request(0));
                }
                Taken::NeedsBytes if !self.readable => {
                    // After this many requests at once, more bytes have most likely arrived: a
                    // receive costs less than a wait.
                    self.readable = self.taken >= STREAM;
                    return Ok(if self.readable { Took::Pause } else { Took::Nothing });
                }
                // Answers are sent before the next receive.
                Taken::NeedsBytes if self.taken > 0 && self.has_work() => return Ok(Took::Pause),
                Taken::NeedsBytes => {
                    self.receive()?;
                }
            }
        }
        Ok(Took::Nothing)
    }

    fn answer(&mut self, completion: Completion) -> Result<()> {
        if let Some(request) = self.request_table.remove(completion.tag) {
            self.answer_request(&request, completion);
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        self.outbox.bytes() >= SEND_AT
    }

    fn owes(&self) -> bool {
        self.has_work()
    }

    fn hand_over(&mut self) -> Result<bool> {
        if self.is_over() {
            self.stop.requests_ended();
        }
        // After a handover the new server sends these bytes, and they must not be sent twice.
        if self.rest == Rest::Paused {
            return Ok(false);
        }
        Ok(self.outbox.send(&mut self.wire, &mut self.queue)?)
    }

    fn look(&mut self) -> Result<bool> {
        // A client with many requests in flight sends more of them within the pause: one receive
        // takes them all, and their replies are sent together.
        (0..PAUSE).for_each(|_| spin_loop());
        Ok(!self.closing && !self.rests() && self.receive()?)
    }

    fn listen(&mut self, wake: Wake) -> Result<bool> {
        if self.lies_down() {
            // `go_on` may have missed this thread's state: the thread checks again before it
            // sleeps.
            return Ok(!self.stop.is_held());
        }
        let requests = wake.requests && !self.closing && !self.rests();
        let closed = !requests && !self.closing;
        let events =
            [(READABLE, requests, POLLIN), (WRITABLE, wake.room, POLLOUT), (CLOSED, closed, POLLRDHUP)];
        for (number, wanted, events) in events {
            if wanted {
                let watching = &mut self.watching[number as usize];
                export_loop::watch(&mut self.queue, self.wire.as_fd(), events, number, watching)?;
            }
        }
        Ok(false)
    }

    fn hear(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(number) = self.queue.next_event() {
            self.watching[number as usize] = false;
            self.readable |= number == READABLE;
            if number == CLOSED {
                self.is_left();
            }
            any = true;
        }
        Ok(any)
    }

    fn is_closing(&self) -> bool {
        self.closing
    }

    fn is_over(&self) -> bool {
        self.closing && self.request_table.is_empty()
    }
}
