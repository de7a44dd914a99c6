//! How a connection is lost, and made again.

use std::time::Duration;

use rustix::io::Errno;

use super::super::Connected;
use super::super::socket::{Attempt, Progress};
use super::{Phase, State, say_goodbye};
use crate::monotonic;

/// The pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that lasted so long was a good one: the next outage is a new one.
const LASTING: Duration = Duration::from_secs(10);

/// A time without a connection, until one has answered a request.
pub(super) struct Outage {
    since: Duration,
    attempts: u32,
    /// There was a connection before.
    pub(super) lost: bool,
    /// What was logged last.
    said: String,
    /// Requests fail until there is a connection.
    given_up: bool,
    last: Duration,
}

impl State {
    /// The connection cannot go on. What is in flight is asked again on the next one.
    pub(super) fn lost(&mut self, why: &str) {
        let Phase::Up(socket) = std::mem::replace(&mut self.phase, Phase::Down) else { return };
        socket.shut();
        self.inbox.clear();
        self.sent = 0;
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
        let export = shared.export;
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        for (index, flight) in (0..).zip(&mut self.flights) {
            if let Some(flight) = flight {
                flight.starts_over();
                self.questions = self.questions.wrapping_add(1);
                flight.ask(&export, shared.losses.mark(), self.questions);
                waiting.push((flight.number, index));
            }
        }
        waiting.sort_unstable();
        self.outbox = waiting.into_iter().map(|(_, index)| index).collect();
        if !self.is_idle() {
            // At once, perhaps the server is there; one that answers nothing is not asked in a frenzy.
            if was_good { self.try_now() } else { self.pause() }
        }
    }

    /// Looks whether an idle connection has broken.
    pub(in super::super) fn look(&mut self) {
        if let Phase::Up(socket) = &self.phase
            && self.is_idle()
            && socket.is_dead()
        {
            self.lost("the server closed the connection");
        }
    }

    /// The first request after a time without connection.
    pub(super) fn want_connection(&mut self) {
        if let Some(spare) = self.shared.take_spare() {
            return self.connected(spare);
        }
        let now = monotonic();
        if let Some(outage) = &self.outage
            && outage.given_up
            && now < outage.last + LONGEST_PAUSE
        {
            return self.fail_all("the server is still gone");
        }
        // Nobody has waited until now.
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
        match Attempt::begin(&shared.address, &shared.addresses, number, false) {
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
            Ok(Progress::Waits(write)) => {
                *to_write = write;
                self.check_limit();
            }
            Ok(Progress::Ready(export)) => {
                let Phase::Trying(attempt, _) = std::mem::replace(&mut self.phase, Phase::Down) else {
                    return;
                };
                let socket = attempt.into_socket();
                match self.shared.differs(&export) {
                    None => self.connected(Connected::new(socket, &export)),
                    Some(why) => {
                        socket.shut();
                        self.failed(&format!("what is served there is another export: {why}"));
                    }
                }
            }
            Err(e) => self.failed(&e.to_string()),
        }
    }

    /// The export has grown, and this connection does not reach all of it: everything on it is answered, and it ends in order.
    pub(super) fn renew(&mut self) {
        let Phase::Up(socket) = std::mem::replace(&mut self.phase, Phase::Down) else { return };
        say_goodbye(&socket);
        // The server has not gone: nothing is lost.
        socket.count();
        socket.shut();
        self.want_connection();
    }

    fn connected(&mut self, Connected { socket, structured, size }: Connected) {
        self.up_since = monotonic();
        (self.structured, self.size, self.outgrown) = (structured, size, false);
        self.inbox.clear();
        self.sent = 0;
        self.shared.register(&socket);
        self.phase = Phase::Up(socket);
        self.send();
    }

    /// An attempt came to nothing.
    fn failed(&mut self, why: &str) {
        if let Phase::Trying(attempt, _) = &self.phase {
            attempt.socket().shut();
        }
        if let Some(outage) = &mut self.outage
            && outage.said != why
        {
            log::warn!("{}: {why}", self.shared.name);
            outage.said = why.into();
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

    /// Requests do not wait for ever.
    pub(super) fn check_limit(&mut self) {
        let now = monotonic();
        let limit = self.shared.address.reconnect_delay;
        if let Some(outage) = &mut self.outage
            && !outage.given_up
            && now.saturating_sub(outage.since) >= limit
        {
            outage.given_up = true;
            let seconds = limit.as_secs();
            log::error!(
                "{}: the server did not come back within {seconds} s (reconnect-delay); requests fail until it does",
                self.shared.name
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

    /// The connection, if it is whole and nobody uses it, for somebody else to use.
    pub(in super::super) fn release(&mut self) -> Option<Connected> {
        self.look();
        if !self.is_idle() || !matches!(self.phase, Phase::Up(_)) {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Up(socket) => Some(Connected { socket, structured: self.structured, size: self.size }),
            _ => None,
        }
    }
}

impl Outage {
    fn new(lost: bool) -> Self {
        let now = monotonic();
        Self { since: now, attempts: 0, lost, said: String::new(), given_up: false, last: now }
    }
}
