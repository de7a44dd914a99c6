//! A ring with one queue and one thread, from the ring's start to its end.
//!
//! ```text
//!   kick --> Ring::take --parse--> Queue (RequestTable: chains) --> Ring::put, publish --> call
//!            a write is encrypted from guest memory        a read is decrypted to guest memory
//! ```
//!
//! The thread waits in one place, its queue's ring: for the lower device, for kicks, and for
//! orders.

mod rest;
mod take;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use underseal_datapath::{
    Buffer, Completion, Error as Failure, ErrorKind as Kind, Mapping, Queue, QueueOptions,
};
use underseal_device::{POLLIN, Signal};
use vm_memory::{Bytes, GuestAddress};

use self::rest::Rest;
use self::take::{Next, Stalled};
use super::chain::{Malformed, Segment};
use super::guest::{HeldMemory, Memory};
use super::inflight::Tracker;
use super::request::{LONGEST, Operation, SERIAL, Status};
use super::ring::Ring;
use super::running::{Order, RingWakeup, Start};
use crate::event::still;
use crate::export_loop::{self, ExportLoop, Lookouts, Took, Wake};
use crate::failure_log::RateLimitedLog;
use crate::request_table::RequestTable;

/// The most requests in flight on one ring.
const DEPTH: u16 = 256;

/// Completed chains are returned to the driver after this number at the latest, so that it works on
/// them meanwhile.
const BATCH: usize = 16;

/// The event numbers of the descriptors in the queue's ring.
const KICK: u32 = 0;
const WAKEUP: u32 = 1;

/// A request in flight, and the chain that its answer goes to.
struct PendingRequest {
    head: u16,
    status: GuestAddress,
    writable: u32,
    /// The segments that a read's data go to.
    data: Vec<Segment>,
}

pub(super) struct Worker {
    name: String,
    mapping: Arc<Mapping>,
    /// The queue is declared before the descriptors that its ring watches, so that it is dropped
    /// first.
    queue: Queue,
    kick: File,
    wakeup: Arc<RingWakeup>,
    orders: Receiver<Order>,
    call: Option<Signal>,
    error: Option<Signal>,
    memory: Arc<Memory>,
    /// The same memory, for requests.
    held: Arc<HeldMemory>,
    ring: Ring,
    tracker: Option<Tracker>,
    /// Heads that were in flight when the previous server was killed; the next one is last.
    again: Vec<u16>,
    stalled: Option<Stalled>,
    request_table: RequestTable<PendingRequest>,
    /// Lists of segments that are free.
    spare: Vec<Vec<Segment>>,
    /// Keeps the queue's memory in pieces: otherwise each small request would split the whole
    /// memory, and join it again.
    _piece: Option<Buffer>,
    /// When requests that are answered but not signalled yet were ready.
    ready: Vec<Instant>,
    serial: [u8; SERIAL],
    durable: bool,
    watching: [bool; 2],
    stopping: bool,
    gone: bool,
    rest: Rest,
    /// The next available head of the ring of an old server, which may still resume: until this
    /// server serves the ring, it must not touch it.
    paused_at: Option<u16>,
    /// True when the ring was malformed.
    broken: bool,
    failure_log: RateLimitedLog,
}

impl Worker {
    pub(super) fn new(start: Start, orders: Receiver<Order>, wakeup: Arc<RingWakeup>) -> io::Result<Self> {
        let Start { name, mapping, memory, mut ring, base, tracker, kick, call, error, serial, .. } = start;
        let (rest, paused_at) = if start.rests { (Rest::Paused, Some(base)) } else { (Rest::No, None) };
        let durable = start.durable;
        let depth = DEPTH.min(ring.size()).into();
        let options = QueueOptions { depth, max_request: LONGEST as usize };
        let mut queue = Queue::open(mapping.clone(), options).map_err(io::Error::other)?;
        let _piece = queue.alloc(1);
        ring.set_next(base);
        let size = usize::from(ring.size());
        let mut this = Self {
            name,
            mapping,
            queue,
            kick,
            wakeup,
            orders,
            call,
            error,
            held: Arc::new(HeldMemory(memory.clone())),
            memory,
            ring,
            tracker,
            again: Vec::new(),
            stalled: None,
            request_table: RequestTable::new(depth),
            spare: Vec::with_capacity(size),
            _piece,
            ready: Vec::with_capacity(size),
            serial,
            durable,
            watching: [false; 2],
            stopping: false,
            gone: false,
            rest,
            paused_at,
            broken: false,
            failure_log: RateLimitedLog::new("this ring"),
        };
        if this.paused_at.is_none() {
            this.resume_at(base);
        }
        Ok(this)
    }

    /// Begins to serve the ring at this available head; chains that were taken and not returned
    /// come first.
    fn resume_at(&mut self, base: u16) {
        let used = self.ring.used();
        self.again = self.tracker.as_mut().map_or_else(Vec::new, |tracker| tracker.recover(used));
        let taken = u16::try_from(self.again.len()).unwrap_or(u16::MAX);
        self.ring.set_next(if taken == 0 { base } else { used.wrapping_add(taken) });
        if taken > 0 {
            log::info!("{}: {taken} requests of the server before are done again", self.name);
        }
        self.again.reverse();
    }

    /// Serves until the ring is asked to end. Returns the next available head.
    pub(super) fn run(mut self) -> u16 {
        // The driver may not have been signalled about the last answers of the previous server.
        let begun = if self.rests() { Ok(()) } else { self.signal_now() };
        if let Err(trouble) = begun.and_then(|()| export_loop::serve(&mut self)) {
            match trouble {
                // Zeros in place of lost memory can look malformed in many ways.
                Trouble::Ring(_) if self.is_lost() => {
                    log::error!("{}: stopped: {}", self.name, Malformed::Lost)
                }
                Trouble::Ring(malformed) => {
                    log::error!("{}: stopped, its driver is at fault: {malformed}", self.name)
                }
                Trouble::System(e) => log::error!("{}: stopped: {e}", self.name),
            }
            if let Some(Err(e)) = self.error.as_mut().map(Signal::send) {
                log::error!("{}: the front end cannot be told: {e}", self.name);
            }
            self.finish_in_silence();
        }
        self.ring.next()
    }

    /// Returns true when shared memory was truncated.
    fn is_lost(&self) -> bool {
        self.memory.is_lost() || self.tracker.as_ref().is_some_and(Tracker::is_lost)
    }

    fn obey(&mut self) -> Result<(), Trouble> {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Call(call) => {
                    self.call = call;
                    // A signal through the previous descriptor may have been lost.
                    self.signal_now()?;
                }
                Order::Error(error) => self.error = error,
                Order::Memory(memory, seen) => {
                    self.held = Arc::new(HeldMemory(memory.clone()));
                    self.memory = memory;
                    let _ = seen.send(());
                }
                Order::Rest(tell) => self.rest = Rest::Coming(tell),
                Order::GoOn => {
                    self.rest = Rest::No;
                    if let Some(base) = self.paused_at.take() {
                        self.ring.go_on(self.memory.ram())?;
                        self.resume_at(base);
                    }
                    // The driver may not have been signalled about the last answers of the previous
                    // server.
                    self.signal_now()?;
                }
                Order::Stop => self.stopping = true,
                Order::Leave => (self.stopping, self.gone) = (true, true),
            }
        }
        Ok(())
    }

    /// Writes the status, and puts the chain into the used ring.
    fn give_back(&mut self, cookie: PendingRequest, how: Status) -> Result<(), Trouble> {
        let PendingRequest { head, status, writable, data } = cookie;
        let ram = self.memory.ram();
        ram.write_obj(how as u8, status).map_err(|_| Malformed::Status)?;
        // A failed read promises no data.
        let len = match how {
            Status::Ok => writable + 1,
            _ if writable == 0 => 1,
            _ => 0,
        };
        self.ring.put(ram, head, len)?;
        if let Some(tracker) = &mut self.tracker {
            tracker.put(head);
        }
        self.ready.push(self.queue.clock());
        self.spare.push(data);
        Ok(())
    }

    fn signal_now(&mut self) -> Result<(), Trouble> {
        Ok(self.call.as_mut().map_or(Ok(()), Signal::send)?)
    }

    /// Ends the requests in flight of a malformed ring, without answers. Orders are handled until
    /// the end.
    fn finish_in_silence(&mut self) {
        self.broken = true;
        (self.stalled, self.again) = (None, Vec::new());
        let mut lookouts = Lookouts::new(Duration::ZERO);
        loop {
            while let Some(Completion { tag, buffer, .. }) = self.queue.next_completion() {
                self.request_table.remove(tag);
                buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
            }
            // The last completion may have ended the ring, and no event wakes the thread then.
            if self.is_over() {
                return;
            }
            if let Err(Trouble::System(e)) =
                export_loop::sleep(self, &mut lookouts, Wake { requests: false, room: true })
            {
                return log::error!("{}: {e}", self.name);
            }
        }
    }

    fn status(&mut self, failure: &Failure) -> Status {
        if failure.kind() == Kind::Unsupported {
            return Status::Unsupported;
        }
        self.failure_log.tell(&self.name, failure);
        Status::IoError
    }
}

impl ExportLoop for Worker {
    type Error = Trouble;

    const LOOKS: bool = true;

    fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    fn begin_turn(&mut self) -> Result<(), Trouble> {
        if self.wakeup.was_rung() {
            self.obey()?;
        }
        self.ring.hush(self.memory.ram())?;
        if self.is_lost() {
            return Err(Malformed::Lost.into());
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Took, Trouble> {
        let stalled = match self.stalled.take() {
            Some(stalled) => stalled,
            None if self.request_table.is_full() => return Ok(Took::NoRoom),
            None => match self.next()? {
                Next::Nothing => return Ok(Took::Nothing),
                Next::Answered => return Ok(Took::Request(0)),
                Next::Request(stalled) => stalled,
            },
        };
        let bytes = match stalled.operation {
            Operation::Read { len, .. } | Operation::Write { len, .. } => len as usize,
            _ => 0,
        };
        if let Err(back) = self.start(stalled)? {
            self.stalled = Some(back);
            return Ok(Took::NoRoom);
        }
        Ok(Took::Request(bytes))
    }

    fn answer(&mut self, completion: Completion) -> Result<(), Trouble> {
        let Completion { tag, result, buffer } = completion;
        let Some(cookie) = self.request_table.remove(tag) else { return Ok(()) };
        // The data of a read are in guest memory already.
        let how = match &result {
            Ok(()) => Status::Ok,
            Err(failure) => self.status(failure),
        };
        if let Some(buffer) = buffer {
            self.queue.free(buffer);
        }
        self.give_back(cookie, how)
    }

    fn is_due(&self) -> bool {
        self.ready.len() >= BATCH
    }

    fn owes(&self) -> bool {
        !self.ready.is_empty() || self.queue.has_backlog()
    }

    /// Publishes completed chains, and signals the driver if it wants that.
    fn hand_over(&mut self) -> Result<bool, Trouble> {
        if self.ready.is_empty() {
            return Ok(true);
        }
        let ram = self.memory.ram();
        self.ring.publish(ram)?;
        if let Some(tracker) = &mut self.tracker {
            tracker.published(self.ring.used());
        }
        if self.ring.wants_signal(ram)? {
            self.signal_now()?;
        }
        let now = Instant::now();
        for ready in self.ready.drain(..) {
            self.queue.replied(ready, now);
        }
        Ok(true)
    }

    fn look(&mut self) -> Result<bool, Trouble> {
        Ok(!self.stopping && !self.rests() && self.ring.look(self.memory.ram())?)
    }

    /// The thread always listens for orders.
    fn listen(&mut self, wake: Wake) -> Result<bool, Trouble> {
        self.lie_down();
        let takes = wake.requests && !self.stopping && !self.rests();
        let [kick, wakeup] = &mut self.watching;
        if takes {
            if self.ring.listen(self.memory.ram())? {
                return Ok(true);
            }
            export_loop::watch(&mut self.queue, self.kick.as_fd(), POLLIN, KICK, kick)?;
        }
        export_loop::watch(&mut self.queue, self.wakeup.as_fd(), POLLIN, WAKEUP, wakeup)?;
        Ok(false)
    }

    /// Notes kicks, and handles orders.
    fn hear(&mut self) -> Result<bool, Trouble> {
        let mut any = false;
        while let Some(number) = self.queue.next_event() {
            any = true;
            self.watching[number as usize] = false;
            // The reads do not block; the counters' values do not matter.
            if number == KICK {
                // The kick is left for the next server: another process, or this one after a
                // resume.
                if !self.rests() {
                    still(&self.kick);
                }
            } else {
                self.wakeup.still();
                self.obey()?;
            }
        }
        Ok(any)
    }

    /// Returns true when every request is answered, or the front end has disconnected.
    fn is_over(&self) -> bool {
        let idle = self.request_table.is_empty() && self.stalled.is_none();
        self.stopping && (idle || self.gone && self.mapping.is_stopped())
    }
}

/// Why a ring stops by itself.
pub(super) enum Trouble {
    Ring(Malformed),
    System(io::Error),
}

impl From<Malformed> for Trouble {
    fn from(malformed: Malformed) -> Self {
        Self::Ring(malformed)
    }
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Self {
        Self::System(e)
    }
}
