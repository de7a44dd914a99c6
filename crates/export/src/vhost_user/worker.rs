//! One ring, one queue, one thread: from when the ring is started and enabled to when it is not.
//!
//! ```text
//!   kick --> Ring::take --parse--> Queue (Tickets remember where the answer goes) --> Ring::put, publish --> call
//!            a write is copied out once, and encrypted there      a read is decrypted here, then copied in
//! ```
//!
//! The thread waits in one place, its queue's ring: for the lower device, for kicks, and for orders. It looks for orders every
//! turn, and a turn takes so many requests and no more: a driver that never rests keeps its ring, but not the thread.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use underseal_datapath::{Buffer, Completion, Error as Failure, ErrorKind as Kind, Mapping, Queue};
use underseal_datapath::{QueueOptions, Request as Job};
use underseal_device::Signal;
use vm_memory::{Bytes, GuestAddress};

use super::chain::{Malformed, Segment};
use super::guest::{Memory, gather, scatter};
use super::inflight::Tracker;
use super::request::{LONGEST, Operation, Request, SERIAL, Status, parse};
use super::ring::Ring;
use super::running::{Bell, Order, Start};
use crate::tickets::Tickets;

/// Requests in flight on one ring.
const DEPTH: u16 = 256;

/// What is done goes back to the driver after so many bytes or chains at the latest, so that it works on them meanwhile.
const HAND_OVER: u32 = 128 << 10;
const BATCH: usize = 16;

/// Failures of the lower device that are logged one by one; then every thousandth.
const LOGGED: u64 = 20;

/// The ring's numbers for the descriptors.
const KICK: u32 = 0;
const BELL: u32 = 1;

const POLLIN: i16 = 1;

/// A request under way and where its answer goes.
struct Ticket {
    head: u16,
    status: GuestAddress,
    writable: u32,
    /// Where what is read goes.
    data: Vec<Segment>,
}

/// A request that was taken and has no place in the queue yet.
struct Stalled {
    ticket: Ticket,
    operation: Operation,
}

/// Why no more requests are taken for now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// It is time to see to other things; there may be more to take.
    More,
    Drained,
    /// There is no room: requests in flight have to go first.
    Stalled,
}

pub(super) struct Worker {
    name: String,
    mapping: Arc<Mapping>,
    /// Before the descriptors that it watches, so that it goes first.
    queue: Queue,
    kick: File,
    bell: Arc<Bell>,
    orders: Receiver<Order>,
    call: Option<Signal>,
    error: Option<Signal>,
    memory: Arc<Memory>,
    ring: Ring,
    tracker: Option<Tracker>,
    /// Heads that were under way when the server before this one was killed; the next is last.
    again: Vec<u16>,
    stalled: Option<Stalled>,
    tickets: Tickets<Ticket>,
    /// Lists of segments that are free.
    spare: Vec<Vec<Segment>>,
    /// Keeps the queue's memory in pieces: else each small request would cut up the whole of it, and join it again.
    _piece: Option<Buffer>,
    /// When requests that are answered but not signalled yet were ready.
    ready: Vec<Instant>,
    serial: [u8; SERIAL],
    durable: bool,
    watching: [bool; 2],
    stopping: bool,
    gone: bool,
    failures: u64,
}

impl Worker {
    pub(super) fn new(start: Start, orders: Receiver<Order>, bell: Arc<Bell>) -> io::Result<Self> {
        let Start { name, mapping, memory, mut ring, base, mut tracker, kick, call, error, serial, durable } =
            start;
        let depth = DEPTH.min(ring.size()).into();
        let options = QueueOptions { depth, max_request: LONGEST as usize };
        let mut queue = Queue::open(mapping.clone(), options).map_err(io::Error::other)?;
        let _piece = queue.alloc(1);
        let mut again = tracker.as_mut().map_or_else(Vec::new, |tracker| tracker.recover(ring.used()));
        // What was taken and not given back comes before what is next.
        let taken = u16::try_from(again.len()).unwrap_or(u16::MAX);
        ring.set_next(if again.is_empty() { base } else { ring.used().wrapping_add(taken) });
        if taken > 0 {
            log::info!("{name}: {taken} requests of the server before are done again");
        }
        again.reverse();
        let size = usize::from(ring.size());
        Ok(Self {
            name,
            mapping,
            queue,
            kick,
            bell,
            orders,
            call,
            error,
            memory,
            ring,
            tracker,
            again,
            stalled: None,
            tickets: Tickets::new(depth),
            spare: Vec::with_capacity(size),
            _piece,
            ready: Vec::with_capacity(size),
            serial,
            durable,
            watching: [false; 2],
            stopping: false,
            gone: false,
            failures: 0,
        })
    }

    /// Serves until it is told to end. The next available head.
    pub(super) fn run(mut self) -> u16 {
        // Nobody knows whether the driver was told of the last answers of the server before.
        if let Err(trouble) = self.signal_now().and_then(|()| self.serve()) {
            match trouble {
                // Zeros in the place of what was there make no sense in many ways.
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

    fn serve(&mut self) -> Result<(), Trouble> {
        loop {
            if self.bell.was_rung() {
                self.obey()?;
            }
            let pace = self.take_requests()?;
            self.queue.poll()?;
            while let Some(completion) = self.queue.next_completion() {
                self.answer(completion)?;
            }
            self.hand_over()?;
            if self.is_over() {
                return Ok(());
            }
            match pace {
                Pace::More => self.queue.woken(),
                // What has ended may have made room.
                Pace::Stalled if self.queue.in_flight() == 0 => {}
                Pace::Stalled => self.wait(false)?,
                Pace::Drained if self.stopping => self.wait(false)?,
                Pace::Drained if self.ring.listen(self.memory.ram())? => self.queue.woken(),
                Pace::Drained => self.wait(true)?,
            }
        }
    }

    /// Memory that is shared was cut short.
    fn is_lost(&self) -> bool {
        self.memory.is_lost() || self.tracker.as_ref().is_some_and(Tracker::is_lost)
    }

    /// Nothing that was taken is without an answer, or nobody is there to get it.
    fn is_over(&self) -> bool {
        let idle = self.tickets.is_empty() && self.stalled.is_none();
        self.stopping && (idle || self.gone && self.mapping.is_suspended())
    }

    /// Waits for the lower device and for orders, and for kicks if it says so.
    fn wait(&mut self, kicks: bool) -> Result<(), Trouble> {
        // What came while the thread was at work has changed what there is to do.
        if self.take_events()? {
            return Ok(());
        }
        for (number, wanted) in [(KICK, kicks), (BELL, true)] {
            if wanted && !self.watching[number as usize] {
                let fd = if number == KICK { self.kick.as_fd() } else { self.bell.as_fd() };
                self.queue.watch(fd, POLLIN, number)?;
                self.watching[number as usize] = true;
            }
        }
        self.queue.wait()?;
        self.take_events().map(drop)
    }

    /// Takes note of kicks, and obeys orders. True when there was one.
    fn take_events(&mut self) -> Result<bool, Trouble> {
        let mut any = false;
        while let Some(number) = self.queue.next_event() {
            any = true;
            self.watching[number as usize] = false;
            // Neither blocks; what they have counted does not matter.
            if number == KICK {
                let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            } else {
                self.bell.still();
                self.obey()?;
            }
        }
        Ok(any)
    }

    fn obey(&mut self) -> Result<(), Trouble> {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Call(call) => {
                    self.call = call;
                    // The one before may have been signalled in vain.
                    self.signal_now()?;
                }
                Order::Error(error) => self.error = error,
                Order::Memory(memory, seen) => {
                    self.memory = memory;
                    let _ = seen.send(());
                }
                Order::Stop => self.stopping = true,
                Order::Leave => (self.stopping, self.gone) = (true, true),
            }
        }
        Ok(())
    }

    /// Takes what the driver offers, while there is room: no more than it can offer at a time.
    fn take_requests(&mut self) -> Result<Pace, Trouble> {
        let mut bytes = 0;
        self.ring.hush(self.memory.ram())?;
        if self.is_lost() {
            return Err(Malformed::Lost.into());
        }
        for _ in 0..self.ring.size() {
            if self.ready.len() >= BATCH {
                self.hand_over()?;
            }
            let stalled = match self.stalled.take() {
                Some(stalled) => stalled,
                None if self.tickets.is_full() => return Ok(Pace::Stalled),
                None => match self.next()? {
                    Next::Nothing => return Ok(Pace::Drained),
                    Next::Answered => continue,
                    Next::Request(stalled) => stalled,
                },
            };
            bytes += match stalled.operation {
                Operation::Read { len, .. } | Operation::Write { len, .. } => len,
                _ => 0,
            };
            if let Err(back) = self.start(stalled)? {
                self.stalled = Some(back);
                return Ok(Pace::Stalled);
            }
            while let Some(completion) = self.queue.next_ready() {
                self.answer(completion)?;
            }
            if bytes >= HAND_OVER {
                bytes = 0;
                self.queue.poll()?;
                self.hand_over()?;
            }
        }
        Ok(Pace::More)
    }

    /// The next chain, and what it wants.
    fn next(&mut self) -> Result<Next, Trouble> {
        let ram = self.memory.ram();
        let head = match self.again.pop() {
            Some(head) => head,
            None if self.stopping => return Ok(Next::Nothing),
            None => match self.ring.take(ram)? {
                Some(head) => {
                    if let Some(tracker) = &mut self.tracker {
                        if tracker.is_in_flight(head) {
                            return Err(Malformed::InUse(head).into());
                        }
                        tracker.take(head);
                    }
                    head
                }
                None => return Ok(Next::Nothing),
            },
        };
        let mut data = self.spare.pop().unwrap_or_default();
        self.ring.follow(ram, head, &mut data)?;
        let Request { operation, status, writable } = parse(ram, &mut data, self.mapping.discards())?;
        let ticket = Ticket { head, status, writable, data };
        match operation {
            Ok(Operation::GetId) => {
                let how = match scatter(ram, &ticket.data, &self.serial) {
                    Ok(()) => Status::Ok,
                    Err(how) => how,
                };
                self.give_back(ticket, how)?;
            }
            Ok(operation) => return Ok(Next::Request(Stalled { ticket, operation })),
            Err(how) => self.give_back(ticket, how)?,
        }
        Ok(Next::Answered)
    }

    /// Puts a request into the queue, or gives it back when there is no room.
    fn start(&mut self, stalled: Stalled) -> Result<Result<(), Stalled>, Trouble> {
        let Stalled { ticket, operation } = stalled;
        let durable = self.durable;
        let job = match operation {
            Operation::Read { offset, len } => Job::Read { offset, len: len as usize },
            Operation::Write { offset, len } => {
                let Some(mut data) = self.queue.alloc(len as usize) else {
                    return Ok(Err(Stalled { ticket, operation }));
                };
                // From here on the driver cannot change what is written.
                if let Err(how) = gather(self.memory.ram(), &ticket.data, &mut data) {
                    self.queue.free(data);
                    self.give_back(ticket, how)?;
                    return Ok(Ok(()));
                }
                if self.is_lost() {
                    self.queue.free(data);
                    return Err(Malformed::Lost.into());
                }
                Job::Write { offset, data, durable }
            }
            Operation::Discard { offset, len } => Job::Discard { offset, len, durable },
            Operation::WriteZeroes { offset, len, punch } => {
                Job::WriteZeroes { offset, len, durable, punch, fast: false }
            }
            Operation::Flush | Operation::GetId => Job::Flush,
        };
        let tag = self.tickets.issue(ticket);
        if let Err(back) = self.queue.submit(tag, job) {
            if let Job::Write { data, .. } = back {
                self.queue.free(data);
            }
            let ticket = self.tickets.redeem(tag).expect("it was issued just now");
            return Ok(Err(Stalled { ticket, operation }));
        }
        Ok(Ok(()))
    }

    fn answer(&mut self, completion: Completion) -> Result<(), Trouble> {
        let Completion { tag, result, buffer } = completion;
        let Some(ticket) = self.tickets.redeem(tag) else { return Ok(()) };
        let mut how = match &result {
            Ok(()) => Status::Ok,
            Err(failure) => self.status(failure),
        };
        if let Some(buffer) = buffer {
            if how == Status::Ok && ticket.writable > 0 {
                how = scatter(self.memory.ram(), &ticket.data, &buffer).err().unwrap_or(how);
            }
            self.queue.free(buffer);
        }
        self.give_back(ticket, how)
    }

    /// Writes the status, and puts the chain into the used ring.
    fn give_back(&mut self, ticket: Ticket, how: Status) -> Result<(), Trouble> {
        let Ticket { head, status, writable, data } = ticket;
        let ram = self.memory.ram();
        ram.write_obj(how as u8, status).map_err(|_| Malformed::Status)?;
        // Of what was not read nothing is promised.
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

    /// Shows the driver what is done, and signals it if it wants that.
    fn hand_over(&mut self) -> Result<(), Trouble> {
        if self.ready.is_empty() {
            return Ok(());
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
        Ok(())
    }

    fn signal_now(&mut self) -> Result<(), Trouble> {
        Ok(self.call.as_mut().map_or(Ok(()), Signal::send)?)
    }

    /// After a ring broke: what is under way ends, and nobody is told. Orders are obeyed until the end comes.
    fn finish_in_silence(&mut self) {
        (self.stalled, self.again) = (None, Vec::new());
        while !self.is_over() {
            while let Some(Completion { tag, buffer, .. }) = self.queue.next_completion() {
                self.tickets.redeem(tag);
                buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
            }
            if let Err(Trouble::System(e)) = self.wait(false) {
                return log::error!("{}: {e}", self.name);
            }
        }
    }

    fn status(&mut self, failure: &Failure) -> Status {
        match failure.kind() {
            Kind::Unsupported => return Status::Unsupported,
            Kind::Lower | Kind::NoSpace => {}
            _ => {
                log::debug!("{}: {failure}", self.name);
                return Status::IoError;
            }
        }
        self.failures += 1;
        if self.failures <= LOGGED || self.failures.is_multiple_of(1000) {
            let failure = underseal_error::with_causes(failure);
            log::error!("{}: {failure} (failure {} of this ring)", self.name, self.failures);
        }
        Status::IoError
    }
}

enum Next {
    Nothing,
    Answered,
    Request(Stalled),
}

/// Why a ring stops by itself.
enum Trouble {
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
