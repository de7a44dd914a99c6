//! A queue's channel to an export.
//!
//! The socket is read and written with plain system calls that do not wait; the queue's ring only
//! reports when that is possible. So the kernel never holds a request's memory, and a connection
//! can be closed at any time.
//!
//! The ring's events belong to the channel and not to a request: the socket, the clock, and the
//! wakeup after another channel of a shared connection has read this channel's replies.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::link::{LinkState, NbdLink};
use super::socket::NbdSocket;
use crate::wakeup::Wakeup;
use crate::{Channel, Error, Finished, Immediate, Io, POLLIN, POLLOUT, Ring, RingToken, Started, monotonic};

/// The events of the channel.
const READ: u8 = 0;
const WRITE: u8 = 1;
const WAKEUP: u8 = 2;
const CLOCK: u8 = 3;
/// Requests are over that were not returned yet.
const OVER: u8 = 4;

/// The delay before the next try to wait, when the ring was full.
const SOON: Duration = Duration::from_millis(10);

pub(super) struct NbdChannel {
    shared: Arc<Shared>,
    link: Arc<NbdLink>,
    /// The channel's number in its link.
    number: usize,
    /// Set when channels share the link.
    wakeup: Option<Arc<Wakeup>>,
    /// Sockets that the ring watches stay open meanwhile.
    reads: Option<Arc<NbdSocket>>,
    writes: Option<Arc<NbdSocket>>,
    listens: bool,
    ticks: bool,
    posted: bool,
}

impl NbdChannel {
    pub(super) fn new(shared: Arc<Shared>, link: Arc<NbdLink>, wakeup: Option<Arc<Wakeup>>) -> Self {
        let number = link.lock().join(wakeup.clone());
        let (reads, writes) = (None, None);
        Self { shared, link, number, wakeup, reads, writes, listens: false, ticks: false, posted: false }
    }

    /// Arranges that the next event wakes the channel.
    fn settle(&mut self, ring: &mut Ring, state: &mut LinkState) {
        if state.has_over(self.number) && !std::mem::replace(&mut self.posted, true) {
            ring.post(RingToken::channel(OVER));
        }
        if !state.is_busy(self.number) {
            return state.resign(self.number);
        }
        if !state.leads(self.number) {
            if let Some(socket) = state.blocked() {
                self.wait_to_write(ring, socket);
            }
            return self.wait_for_bell(ring);
        }
        let wants = state.wants();
        if let Some(socket) = wants.socket {
            if wants.read {
                self.wait_to_read(ring, socket.clone());
            }
            if wants.write {
                self.wait_to_write(ring, socket);
            }
        }
        if let Some(at) = wants.at {
            self.wait_until(ring, at);
        }
    }

    fn wait_to_read(&mut self, ring: &mut Ring, socket: Arc<NbdSocket>) {
        if self.reads.is_none() {
            match ring.poll(socket.as_fd(), POLLIN, RingToken::channel(READ)) {
                Ok(()) => self.reads = Some(socket),
                Err(_) => self.wait_until(ring, monotonic() + SOON),
            }
        }
    }

    fn wait_to_write(&mut self, ring: &mut Ring, socket: Arc<NbdSocket>) {
        if self.writes.is_none() {
            match ring.poll(socket.as_fd(), POLLOUT, RingToken::channel(WRITE)) {
                Ok(()) => self.writes = Some(socket),
                Err(_) => self.wait_until(ring, monotonic() + SOON),
            }
        }
    }

    fn wait_for_bell(&mut self, ring: &mut Ring) {
        if let (false, Some(wakeup)) = (self.listens, &self.wakeup) {
            match ring.poll(wakeup.as_fd(), POLLIN, RingToken::channel(WAKEUP)) {
                Ok(()) => self.listens = true,
                Err(_) => self.wait_until(ring, monotonic() + SOON),
            }
        }
    }

    fn wait_until(&mut self, ring: &mut Ring, at: Duration) {
        // Kernels before 5.11 have no timeouts here: then a lost server is looked for when the next
        // request comes.
        self.ticks = self.ticks || ring.timeout(RingToken::channel(CLOCK), at).is_ok();
    }
}

impl Channel for NbdChannel {
    /// Blocks always: a server never answers at once.
    fn read_now(&mut self, _offset: u64, _data: &mut [u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => io,
            Err(refused) => return Started::Finished(refused),
        };
        let link = self.link.clone();
        let mut state = link.lock();
        state.begin(self.number, slot, io);
        let over = state.take_slot(self.number, slot);
        self.settle(ring, &mut state);
        over.map_or(Started::Pending, Started::Finished)
    }

    /// Never has a request: none of the ring's operations belongs to one.
    fn finish(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, _result: i32, over: &mut Vec<Finished>) {
        let link = self.link.clone();
        let mut state = link.lock();
        let what = token.what();
        // Events of an earlier connection come here too: an extra look does no harm.
        match what {
            READ => self.reads = None,
            WRITE => self.writes = None,
            WAKEUP => {
                self.listens = false;
                self.wakeup.iter().for_each(|wakeup| wakeup.heard());
            }
            CLOCK => self.ticks = false,
            _ => self.posted = false,
        }
        if state.leads(self.number) {
            state.drive(what == READ);
        } else {
            state.send();
        }
        state.take_over(self.number, over);
        self.settle(ring, &mut state);
    }
}

impl Drop for NbdChannel {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        state.leave(self.number);
        if self.wakeup.is_none()
            && let Some(spare) = state.release()
        {
            self.shared.keep_spare(spare);
        }
    }
}

/// The error of a device that could not be opened.
pub(super) fn cannot_open(name: &str, why: &super::socket::ConnectFailure) -> Error {
    use super::socket::ConnectFailure;
    let error = Error::new(
        crate::ErrorKind::Open,
        match why {
            ConnectFailure::System(what, _) => format!("{name}: {what}"),
            ConnectFailure::Refused(why) => format!("{name}: {why}"),
        },
    );
    match why {
        ConnectFailure::System(_, errno) => error.with_source(*errno),
        ConnectFailure::Refused(_) => error,
    }
}
