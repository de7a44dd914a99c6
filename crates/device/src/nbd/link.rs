//! A connection, its requests, and its reconnection.
//!
//! ```text
//!   Down --a request--> Trying --handshake--> Up --the connection breaks--> Trying ...
//!    ^                    | refused            |
//!    |                    v                    +-- writes start over, reads continue
//!    +--the time is over- Pausing (50 ms .. 1 s)
//! ```
//!
//! Only one thread uses a link at a time. Of several channels that share it, one leads: it alone
//! waits for the socket and for the clock, and wakes the others when one of their requests is over.

mod outage;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use underseal_nbd_protocol::{REQUEST_LEN, TransmissionFlags};

use self::outage::Outage;
use super::Shared;
use super::flight::NbdRequest;
use super::replies::{ReceiveOutcome, ReplyInbox, ReplyOutcome};
use super::socket::{ConnectAttempt, NbdSocket};
use crate::wakeup::Wakeup;
use crate::{Finished, Io, monotonic};

/// How often a channel that waits for a connection checks, without an event.
const TICK: Duration = Duration::from_millis(100);
/// Requests sent in one call, and replies received before other work has its turn.
const BATCH: usize = 32;

/// A connection that channels use.
pub(super) struct NbdLink {
    state: Mutex<LinkState>,
}

/// The events that the link waits for.
pub(super) struct LinkWait {
    pub(super) socket: Option<Arc<NbdSocket>>,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) at: Option<Duration>,
}

pub(super) struct LinkState {
    shared: Arc<Shared>,
    phase: Phase,
    /// The form of reads on this connection, and the export's size there.
    structured: bool,
    size: u64,
    /// A request goes beyond that size: another connection is made as soon as nothing is in flight
    /// on this one.
    outgrown: bool,
    flights: Vec<Option<NbdRequest>>,
    free: Vec<u32>,
    /// Requests that are not sent completely; the first may be sent in part.
    outbox: VecDeque<u32>,
    sent: usize,
    inbox: ReplyInbox,
    members: Vec<Option<Member>>,
    leader: Option<usize>,
    outage: Option<Outage>,
    up_since: Duration,
    /// Numbers of requests, questions and replies.
    requests: u64,
    questions: u32,
    answers: u64,
    /// Some requests are suspected of making the server hang up: each is sent alone.
    careful: bool,
}

enum Phase {
    Down,
    Trying(Box<ConnectAttempt>, bool),
    Pausing(Duration),
    Up(Arc<NbdSocket>),
}

/// A channel of the link.
struct Member {
    in_flight: usize,
    over: Vec<Finished>,
    /// The losses that the channel has reported.
    seen: u64,
    wakeup: Option<Arc<Wakeup>>,
}

impl NbdLink {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let state = LinkState {
            structured: shared.export.structured,
            size: shared.size(),
            outgrown: false,
            shared,
            phase: Phase::Down,
            flights: Vec::new(),
            free: Vec::new(),
            outbox: VecDeque::new(),
            sent: 0,
            inbox: ReplyInbox::new(),
            members: Vec::new(),
            leader: None,
            outage: None,
            up_since: Duration::ZERO,
            requests: 0,
            questions: 0,
            answers: 0,
            careful: false,
        };
        Self { state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LinkState> {
        // A thread that panicked in a request has lost that request only.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkState {
    /// Adds a channel; `wakeup` where other channels may see its requests end.
    pub(super) fn join(&mut self, wakeup: Option<Arc<Wakeup>>) -> usize {
        let member = Member { in_flight: 0, over: Vec::new(), seen: self.shared.losses.told(), wakeup };
        let free = self.members.iter().position(Option::is_none);
        let number = free.unwrap_or(self.members.len());
        if number == self.members.len() {
            self.members.push(None);
        }
        self.members[number] = Some(member);
        number
    }

    /// Removes a channel, with its requests in flight.
    pub(super) fn leave(&mut self, number: usize) {
        self.members[number] = None;
        let theirs = |flight: &Option<NbdRequest>| flight.as_ref().is_some_and(|f| f.member == number);
        if self.flights.iter().any(theirs) {
            for index in 0..self.flights.len() {
                if theirs(&self.flights[index]) {
                    self.take(index);
                }
            }
            self.outbox.retain(|&index| self.flights[index as usize].is_some());
            // Replies to these requests would have no receiver.
            self.disconnected("a channel was closed amid its requests", false);
        }
        self.resign(number);
    }

    /// Takes a request. [`take_slot`](Self::take_slot) tells whether it is over at once.
    pub(super) fn begin(&mut self, member: usize, slot: u32, io: Io) {
        self.requests += 1;
        let mut flight = NbdRequest::new(member, slot, io, self.requests);
        let export = self.shared.export;
        let has = |flag| export.flags.contains(flag);
        let at_once = match &flight.io {
            Io::Flush if !has(TransmissionFlags::SEND_FLUSH) => Some(self.tell(member)),
            Io::Flush => None,
            io if io.extent().1 == 0 => Some(Ok(())),
            io if io.kind().changes() && has(TransmissionFlags::READ_ONLY) => {
                Some(Err((Errno::ROFS, "the export is read-only")))
            }
            Io::Discard { .. } if !has(TransmissionFlags::SEND_TRIM) => Some(Ok(())),
            Io::Prefetch { .. } if !has(TransmissionFlags::SEND_CACHE) => Some(Ok(())),
            Io::Zero { .. } if !has(TransmissionFlags::SEND_WRITE_ZEROES) => {
                Some(Err((Errno::OPNOTSUPP, "the server cannot zero")))
            }
            _ => None,
        };
        if let Some(m) = &mut self.members[member] {
            m.in_flight += 1;
        }
        if let Some(result) = at_once {
            return self.end(flight, result);
        }
        let (offset, len) = flight.io.extent();
        self.outgrown |= self.size < self.shared.size() && offset.saturating_add(len) > self.size;
        self.questions = self.questions.wrapping_add(1);
        flight.ask(&export, self.shared.losses.mark(), self.questions);
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            u32::try_from(self.flights.len() - 1).unwrap_or(u32::MAX)
        });
        self.flights[index as usize] = Some(flight);
        self.outbox.push_back(index);
        match self.phase {
            Phase::Up(_) => self.send(),
            Phase::Down => self.want_connection(),
            _ => {}
        }
    }

    /// Takes a channel's request, if it is over.
    pub(super) fn take_slot(&mut self, member: usize, slot: u32) -> Option<Finished> {
        let over = &mut self.members[member].as_mut()?.over;
        let at = over.iter().position(|done| done.slot == slot)?;
        Some(over.swap_remove(at))
    }

    /// Takes all requests of a channel that are over.
    pub(super) fn take_over(&mut self, member: usize, into: &mut Vec<Finished>) {
        if let Some(member) = &mut self.members[member] {
            into.append(&mut member.over);
        }
    }

    pub(super) fn has_over(&self, member: usize) -> bool {
        self.members[member].as_ref().is_some_and(|member| !member.over.is_empty())
    }

    /// True when a channel has requests that are not over.
    pub(super) fn is_busy(&self, member: usize) -> bool {
        is_busy(&self.members[member])
    }

    /// True when a channel leads; it takes a free lead.
    pub(super) fn leads(&mut self, number: usize) -> bool {
        if self.leader.is_none() && self.is_busy(number) {
            self.leader = Some(number);
        }
        self.leader == Some(number)
    }

    /// Hands the lead from a channel without requests to one with requests, and wakes that one. The
    /// lead is never free in between: a third channel that took it might already wait for its
    /// wakeup, which no channel would trigger.
    pub(super) fn resign(&mut self, number: usize) {
        if self.leader != Some(number) {
            return;
        }
        self.leader = self.members.iter().position(is_busy);
        if let Some(next) = self.leader.and_then(|next| self.members[next].as_ref()) {
            next.wakeup.iter().for_each(|wakeup| wakeup.ring());
        }
    }

    /// The events that the leader waits for.
    pub(super) fn wants(&self) -> LinkWait {
        let nothing = LinkWait { socket: None, read: false, write: false, at: None };
        if self.is_idle() {
            return nothing;
        }
        match &self.phase {
            Phase::Down => nothing,
            Phase::Up(socket) => {
                LinkWait { socket: Some(socket.clone()), read: true, write: self.can_send(), at: None }
            }
            Phase::Trying(attempt, to_write) => LinkWait {
                socket: Some(attempt.socket().clone()),
                read: !to_write,
                write: *to_write,
                at: Some(attempt.deadline.min(monotonic() + TICK)),
            },
            Phase::Pausing(until) => LinkWait {
                socket: None,
                read: false,
                write: false,
                at: Some((*until).min(monotonic() + TICK)),
            },
        }
    }

    /// Handles an event. `readable`: the socket can be read. Only then the socket is read: a try
    /// costs a system call.
    pub(super) fn drive(&mut self, readable: bool) {
        match &self.phase {
            Phase::Down => {}
            Phase::Up(_) => {
                if readable {
                    self.receive();
                }
                self.send();
            }
            Phase::Trying(..) => self.advance(),
            Phase::Pausing(until) if monotonic() >= *until => self.try_now(),
            Phase::Pausing(_) => self.check_limit(),
        }
    }

    /// The socket, when it takes nothing more for now.
    pub(super) fn blocked(&self) -> Option<Arc<NbdSocket>> {
        match &self.phase {
            Phase::Up(socket) if self.can_send() => Some(socket.clone()),
            _ => None,
        }
    }

    /// True when bytes can be sent. On a connection that is too small for the export only the begun
    /// request is sent.
    fn can_send(&self) -> bool {
        !self.outbox.is_empty() && (!self.outgrown || self.sent > 0) && (!self.careful || self.may_ask_next())
    }

    /// Sends as much as possible, on a thread that found the socket writable.
    pub(super) fn send(&mut self) {
        if self.outgrown && self.sent == 0 && !self.flights.iter().flatten().any(|flight| flight.is_sent) {
            return self.renew();
        }
        while let (Phase::Up(socket), true) = (&self.phase, self.can_send()) {
            let export = &self.shared.export;
            let mut headers = [[0; REQUEST_LEN]; BATCH];
            let count = self.outbox.len().min(if self.outgrown || self.careful { 1 } else { BATCH });
            for (&index, header) in self.outbox.iter().zip(&mut headers) {
                if let Some(flight) = &self.flights[index as usize] {
                    *header = flight.request(index, export).encode();
                }
            }
            let payload =
                |index: &u32| self.flights[*index as usize].as_ref().map_or(&[][..], NbdRequest::payload);
            let mut parts = [IoSlice::new(&[]); 2 * BATCH];
            let (mut skip, mut total) = (self.sent, 0);
            let bytes =
                headers.iter().zip(&self.outbox).flat_map(|(header, index)| [&header[..], payload(index)]);
            for (part, bytes) in parts.iter_mut().zip(bytes.take(2 * count)) {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                total += bytes.len() - skipped;
                *part = IoSlice::new(&bytes[skipped..]);
            }
            let result = socket.send(&parts[..2 * count]);
            match result {
                Ok(sent) => {
                    self.has_sent(sent);
                    if sent < total {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(e) => return self.lost(&format!("cannot send: {e}")),
            }
        }
    }

    fn has_sent(&mut self, sent: usize) {
        self.sent += sent;
        while let Some(&index) = self.outbox.front() {
            let Some(flight) = &mut self.flights[index as usize] else {
                self.outbox.pop_front();
                continue;
            };
            let len = REQUEST_LEN + flight.payload().len();
            if self.sent < len {
                return;
            }
            flight.is_sent = true;
            self.sent -= len;
            self.outbox.pop_front();
        }
    }

    fn receive(&mut self) {
        for _ in 0..BATCH {
            let Phase::Up(socket) = &self.phase else { return };
            let received = match self.inbox.receive(&mut &**socket, &mut self.flights) {
                Ok(ReceiveOutcome::End) => return self.lost("the server closed the connection"),
                Ok(received) => received,
                Err(Errno::AGAIN) => return,
                Err(e) => return self.lost(&format!("cannot receive: {e}")),
            };
            loop {
                match self.inbox.next(&mut self.flights, self.structured) {
                    Ok(None) => break,
                    Ok(Some((_, ReplyOutcome::Failed(error))))
                        if error == Errno::SHUTDOWN.raw_os_error().cast_unsigned() =>
                    {
                        return self.lost("the server is stopping");
                    }
                    Ok(Some((index, answer))) => self.answered(index, answer),
                    Err(violation) => return self.lost(violation),
                }
            }
            if received == ReceiveOutcome::Short {
                return;
            }
        }
    }

    fn answered(&mut self, index: usize, answer: ReplyOutcome) {
        let shared = self.shared.clone();
        self.answers += 1;
        if self.outage.take().is_some_and(|outage| outage.lost) {
            log::info!("{}: requests are answered again", shared.name);
        }
        let Some(flight) = &mut self.flights[index] else { return };
        let asks_again = match answer {
            ReplyOutcome::Done => flight.goes_on(&shared.export),
            ReplyOutcome::Failed(number) => flight.retries_unsynced(number, &shared.export),
        };
        if asks_again {
            flight.answers += 1;
            self.questions = self.questions.wrapping_add(1);
            flight.ask(&shared.export, shared.losses.mark(), self.questions);
            self.outbox.push_back(u32::try_from(index).unwrap_or(u32::MAX));
            return;
        }
        let Some(flight) = self.take(index) else { return };
        let result = match (answer, flight.unsynced) {
            (ReplyOutcome::Done, None) => Ok(()),
            (ReplyOutcome::Done, Some(number)) => {
                shared.losses.fail(errno(number));
                Err((errno(number), "the server answers"))
            }
            (ReplyOutcome::Failed(number), _) => Err((errno(number), "the server answers")),
        };
        let result = match (&flight.io, result) {
            // The request was a hint that the server cannot use.
            (Io::Discard { .. } | Io::Prefetch { .. }, Err((Errno::OPNOTSUPP, _))) => Ok(()),
            (_, result) => result,
        };
        if let (Ok(()), Phase::Up(socket)) = (&result, &self.phase)
            && flight.is_volatile(&shared.export)
        {
            shared.acknowledge(socket);
        }
        if let Err((errno, _)) = result
            && flight.asks_to_flush()
        {
            shared.losses.fail(errno);
        }
        if result.is_ok() && flight.is_flush() {
            if let Err(loss) = self.tell(flight.member) {
                return self.end(flight, Err(loss));
            }
            shared.losses.flushed(flight.mark);
        }
        self.end(flight, result);
    }

    /// Fails when a channel has not reported yet that acknowledged writes may be lost.
    fn tell(&mut self, member: usize) -> Result<(), (Errno, &'static str)> {
        // Another connection may have lost the server unnoticed.
        self.shared.look();
        let Some(member) = &mut self.members[member] else { return Ok(()) };
        if self.shared.losses.tell(&mut member.seen) {
            const WHY: &str =
                "the connection was lost before the flush, and with it perhaps acknowledged writes";
            return Err((Errno::IO, WHY));
        }
        Ok(())
    }

    fn take(&mut self, index: usize) -> Option<NbdRequest> {
        let flight = self.flights[index].take()?;
        self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
        self.careful = self.careful && self.flights.iter().flatten().any(NbdRequest::is_suspect);
        Some(flight)
    }

    /// Ends a request.
    fn end(&mut self, flight: NbdRequest, result: Result<(), (Errno, &str)>) {
        let (number, finished) = flight.over(result);
        let leads = self.leader == Some(number);
        if let Some(member) = &mut self.members[number] {
            member.in_flight -= 1;
            member.over.push(finished);
            if !leads {
                member.wakeup.iter().for_each(|wakeup| wakeup.ring());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len()
    }
}

fn is_busy(member: &Option<Member>) -> bool {
    member.as_ref().is_some_and(|member| member.in_flight > 0)
}

impl Drop for LinkState {
    fn drop(&mut self) {
        if let Phase::Up(socket) = &self.phase {
            socket.say_goodbye();
        }
    }
}

/// The system's error number for a server's: those of the protocol, and an I/O error for all
/// others.
fn errno(number: u32) -> Errno {
    match number {
        1 => Errno::PERM,
        12 => Errno::NOMEM,
        22 => Errno::INVAL,
        28 => Errno::NOSPC,
        75 => Errno::OVERFLOW,
        95 => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}
