//! The loss of a connection, and its reconnection.

use std::time::Duration;

use rustix::io::Errno;

use super::super::NegotiatedConnection;
use super::super::socket::{AttemptProgress, ConnectAttempt};
use super::{LinkState, NbdRequest, Phase};
use crate::monotonic;

/// The pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this time a connection was a good one, and its loss begins a new outage.
const LASTING: Duration = Duration::from_secs(10);
/// The number of broken connections after which a request in flight is sent alone.
const SUSPECT: u32 = 2;
/// The number of broken connections, the last ones with nothing else in flight, after which a
/// request fails.
const MOST_BREAKS: u32 = SUSPECT + 3;

/// The time without a connection, until one has answered a request.
pub(super) struct Outage {
    since: Duration,
    attempts: u32,
    /// True after an earlier connection.
    pub(super) lost: bool,
    /// The last logged reason.
    said: String,
    /// True while requests fail, until one is answered.
    given_up: bool,
    /// The last attempt led to a connection, which the server closed.
    hangs_up: bool,
    last: Duration,
}

impl NbdRequest {
    pub(super) fn is_suspect(&self) -> bool {
        self.breaks >= SUSPECT
    }
}

impl LinkState {
    /// Handles a lost connection. Requests in flight are sent again on the next one.
    pub(super) fn lost(&mut self, why: &str) {
        self.disconnected(why, true);
    }

    /// As [`lost`](Self::lost). `suspects`: one of the requests in flight may be the cause.
    pub(super) fn disconnected(&mut self, why: &str, suspects: bool) {
        let Phase::Up(socket) = std::mem::replace(&mut self.phase, Phase::Down) else { return };
        socket.shut();
        self.inbox.clear();
        let shared = self.shared.clone();
        let now = monotonic();
        let lasted = now.saturating_sub(self.up_since) > LASTING;
        let was_good = lasted || self.outage.is_none();
        if was_good {
            log::warn!("{}: {why}; connecting again", shared.name);
            self.outage = Some(Outage::new(true));
        } else {
            log::debug!("{}: {why}", shared.name);
        }
        shared.note_loss(&socket);
        let in_flight = self.take_in_flight();
        if suspects {
            self.suspect(&in_flight, now);
        }
        let export = shared.export;
        for flight in self.flights.iter_mut().flatten() {
            flight.starts_over();
            self.questions = self.questions.wrapping_add(1);
            flight.ask(&export, shared.losses.mark(), self.questions);
        }
        // Suspects go behind all other requests, so that those are answered, and each suspect has
        // its turn.
        let is_suspect =
            |index: &u32| self.flights[*index as usize].as_ref().is_some_and(NbdRequest::is_suspect);
        let (suspects, others): (Vec<_>, Vec<_>) = in_flight.into_iter().partition(is_suspect);
        let unsent = std::mem::take(&mut self.outbox);
        let all = others.into_iter().chain(unsent).chain(suspects);
        self.outbox = all.filter(|&index| self.flights[index as usize].is_some()).collect();
        if !self.is_idle() {
            // The next try is at once, since the server may be there; a server with no or wrong
            // replies is not tried in a tight loop.
            if was_good && !self.careful { self.try_now() } else { self.pause() }
        }
    }

    /// Takes the requests in flight, the oldest first, with the one that is sent in part. If none
    /// was sent, takes the next one.
    fn take_in_flight(&mut self) -> Vec<u32> {
        let is_sent = |flight: &Option<NbdRequest>| flight.as_ref().is_some_and(|flight| flight.is_sent);
        let sent = (0..).zip(&self.flights).filter(|(_, flight)| is_sent(flight));
        let mut in_flight: Vec<u32> = sent.map(|(index, _)| index).collect();
        if std::mem::take(&mut self.sent) > 0 || in_flight.is_empty() {
            in_flight.extend(self.outbox.pop_front());
        }
        in_flight.sort_unstable_by_key(|&index| self.flights[index as usize].as_ref().map(|f| f.number));
        in_flight
    }

    /// Notes that a connection broke with these requests in flight. A request that the server
    /// cannot bear fails alone: with nothing else in flight it breaks one connection after the
    /// other, while the server answers other requests, or until `reconnect-delay` is over. While
    /// requests fail already, the first connection that breaks with one request in flight is
    /// enough, and one that breaks with several makes them suspects.
    fn suspect(&mut self, in_flight: &[u32], now: Duration) {
        let limit = self.shared.address.reconnect_delay;
        let given_up = self.outage.as_ref().is_some_and(|outage| outage.given_up);
        let alone = in_flight.len() == 1;
        for index in in_flight.iter().map(|&index| index as usize) {
            let Some(flight) = &mut self.flights[index] else { continue };
            if flight.breaks == 0 {
                (flight.first_break, flight.answers) = (now, self.answers);
            }
            flight.breaks += if given_up { SUSPECT } else { 1 };
            let is_over = self.answers > flight.answers || now.saturating_sub(flight.first_break) >= limit;
            if !(given_up && alone) && (flight.breaks < MOST_BREAKS || !is_over) {
                continue;
            }
            if let Some(flight) = self.take(index) {
                let (kind, (offset, len)) = (flight.io.kind(), flight.io.extent());
                log::error!(
                    "{}: the server has closed {} connections without an answer to one request ({kind:?} of {len} bytes at byte \
                     {offset}), which fails",
                    self.shared.name,
                    flight.breaks
                );
                self.end(
                    flight,
                    Err((Errno::IO, "the server closes each connection on which this is asked")),
                );
            }
        }
        self.careful = self.flights.iter().flatten().any(NbdRequest::is_suspect);
    }

    /// True when the next request may be sent. A suspect is in flight alone.
    pub(super) fn may_ask_next(&self) -> bool {
        let next = self.outbox.front().and_then(|&index| self.flights[index as usize].as_ref());
        let mut in_flight = self.flights.iter().flatten().filter(|flight| flight.is_sent);
        self.sent > 0
            || match next {
                Some(next) if next.is_suspect() => in_flight.next().is_none(),
                _ => !in_flight.any(NbdRequest::is_suspect),
            }
    }

    /// Checks whether an idle connection has broken.
    pub(in super::super) fn look(&mut self) {
        if let Phase::Up(socket) = &self.phase
            && self.is_idle()
            && socket.is_dead()
        {
            self.lost("the server closed the connection");
        }
    }

    /// Connects for the first request without a connection.
    pub(super) fn want_connection(&mut self) {
        if let Some(spare) = self.shared.take_spare() {
            return self.connected(spare);
        }
        let now = monotonic();
        if let Some(outage) = &self.outage
            && outage.given_up
            && now < outage.last + LONGEST_PAUSE
        {
            if outage.hangs_up {
                // The server may answer this request.
                self.phase = Phase::Pausing(outage.last + LONGEST_PAUSE);
                return;
            }
            return self.fail_all("the server is still gone");
        }
        // No request has waited so far.
        if self.outage.as_ref().is_none_or(|outage| !outage.given_up) {
            let lost = self.outage.as_ref().is_some_and(|outage| outage.lost);
            self.outage = Some(Outage::new(lost));
        }
        self.try_now();
    }

    pub(super) fn try_now(&mut self) {
        let now = monotonic();
        let number = match &mut self.outage {
            Some(outage) => {
                outage.attempts += 1;
                outage.last = now;
                outage.attempts as usize - 1
            }
            None => 0,
        };
        let shared = self.shared.clone();
        match ConnectAttempt::begin(&shared.address, &shared.addresses, number, false) {
            Ok(attempt) => {
                self.phase = Phase::Trying(Box::new(attempt), false);
                self.advance();
            }
            Err(e) => self.failed(&e.to_string()),
        }
    }

    pub(super) fn advance(&mut self) {
        let Phase::Trying(attempt, to_write) = &mut self.phase else { return };
        match attempt.advance() {
            Ok(AttemptProgress::Waits(write)) => {
                *to_write = write;
                self.check_limit();
            }
            Ok(AttemptProgress::Ready(export)) => {
                let Phase::Trying(attempt, _) = std::mem::replace(&mut self.phase, Phase::Down) else {
                    return;
                };
                let socket = attempt.into_socket();
                match self.shared.differs(&export) {
                    None => self.connected(NegotiatedConnection::new(socket, &export)),
                    Some(why) => {
                        socket.shut();
                        self.failed(&format!("another export is served there: {why}"));
                    }
                }
            }
            Err(e) => self.failed(&e.to_string()),
        }
    }

    /// Ends a connection that is too small for the export, after all its requests were answered.
    pub(super) fn renew(&mut self) {
        let Phase::Up(socket) = std::mem::replace(&mut self.phase, Phase::Down) else { return };
        if socket.is_dead() {
            // The server ended before it came back larger.
            self.shared.note_loss(&socket);
        } else {
            socket.say_goodbye();
        }
        socket.shut();
        self.want_connection();
    }

    fn connected(&mut self, NegotiatedConnection { socket, structured, size }: NegotiatedConnection) {
        self.up_since = monotonic();
        if let Some(outage) = &mut self.outage {
            outage.hangs_up = true;
        }
        (self.structured, self.size, self.outgrown) = (structured, size, false);
        self.inbox.clear();
        self.sent = 0;
        self.shared.register(&socket);
        self.phase = Phase::Up(socket);
        self.send();
    }

    /// Handles a failed attempt.
    fn failed(&mut self, why: &str) {
        if let Phase::Trying(attempt, _) = &self.phase {
            attempt.socket().shut();
        }
        if let Some(outage) = &mut self.outage {
            outage.hangs_up = false;
            if outage.said != why {
                log::warn!("{}: {why}", self.shared.name);
                outage.said = why.into();
            }
        }
        if self.outage.as_ref().is_some_and(|outage| outage.given_up) {
            return self.fail_all(why);
        }
        self.pause();
    }

    fn pause(&mut self) {
        let attempts = self.outage.as_ref().map_or(0, |outage| outage.attempts);
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(attempts.min(10)).max(1) / 2;
        self.phase = Phase::Pausing(monotonic() + pause.min(LONGEST_PAUSE));
        self.check_limit();
    }

    /// Fails waiting requests after the time limit.
    pub(super) fn check_limit(&mut self) {
        let now = monotonic();
        let limit = self.shared.address.reconnect_delay;
        if let Some(outage) = &mut self.outage
            && !outage.given_up
            && now.saturating_sub(outage.since) >= limit
        {
            outage.given_up = true;
            let (name, seconds) = (&self.shared.name, limit.as_secs());
            if outage.hangs_up {
                log::error!(
                    "{name}: the server has closed each connection without an answer for {seconds} s (reconnect-delay); requests \
                     fail until it answers one"
                );
                return self.fail_all("the server closes each connection without an answer");
            }
            log::error!(
                "{name}: the server did not come back within {seconds} s (reconnect-delay); requests fail until it does"
            );
            self.fail_all("the server went away and did not come back");
        }
    }

    fn fail_all(&mut self, why: &str) {
        if let Phase::Trying(attempt, _) = std::mem::replace(&mut self.phase, Phase::Down) {
            attempt.socket().shut();
        }
        self.outbox.clear();
        self.sent = 0;
        for index in 0..self.flights.len() {
            if let Some(flight) = self.take(index) {
                self.end(flight, Err((Errno::IO, why)));
            }
        }
    }

    /// Takes the connection, if it works and is idle, for another channel.
    pub(in super::super) fn release(&mut self) -> Option<NegotiatedConnection> {
        self.look();
        if !self.is_idle() || !matches!(self.phase, Phase::Up(_)) {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Up(socket) => {
                Some(NegotiatedConnection { socket, structured: self.structured, size: self.size })
            }
            _ => None,
        }
    }
}

impl Outage {
    fn new(lost: bool) -> Self {
        let now = monotonic();
        Self {
            since: now,
            attempts: 0,
            lost,
            said: String::new(),
            given_up: false,
            hangs_up: false,
            last: now,
        }
    }
}
