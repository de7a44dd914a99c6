//! A queue's way to an export.
//!
//! The socket is read and written with plain system calls that do not wait; the queue's ring only tells when it is worth
//! while. So the kernel never has memory of a request's, and a connection can go at any time.
//!
//! What is waited for goes under the token of a request in flight, and a request is not over before that has come:
//! afterwards its slot may be another device's.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::bell::Bell;
use super::link::{Link, State};
use super::socket::Socket;
use crate::{Channel, Error, Finished, Io, Now, Ring, Started, Token, monotonic};

/// poll(2).
const POLLIN: i16 = 1;
const POLLOUT: i16 = 4;
/// How soon to try again to wait, when the ring was full.
const SOON: Duration = Duration::from_millis(10);

pub(super) struct NbdChannel {
    shared: Arc<Shared>,
    link: Arc<Link>,
    /// This channel's number among those of its link.
    number: usize,
    /// When it shares its link.
    bell: Option<Arc<Bell>>,
    slots: Vec<Slot>,
    /// Slots whose requests are not over.
    active: Vec<u32>,
    /// What the ring waits for already.
    reads: bool,
    writes: bool,
    ticks: bool,
    over: Vec<Finished>,
}

/// A request, and what the ring has under its token.
#[derive(Default)]
struct Slot {
    /// The socket or the bell can be read; the socket is kept open.
    read: Option<Read>,
    write: Option<Arc<Socket>>,
    timer: bool,
    posted: bool,
    over: Option<Finished>,
}

enum Read {
    Socket { _open: Arc<Socket> },
    Bell,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.read.is_none() && self.write.is_none() && !self.timer && !self.posted
    }
}

impl NbdChannel {
    pub(super) fn new(shared: Arc<Shared>, link: Arc<Link>, bell: Option<Arc<Bell>>, depth: u32) -> Self {
        let number = link.lock().join(bell.clone());
        Self {
            shared,
            link,
            number,
            bell,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            active: Vec::with_capacity(depth as usize),
            reads: false,
            writes: false,
            ticks: false,
            over: Vec::new(),
        }
    }

    /// Takes what is over, and sees to it that whatever comes next is waited for. `current` is asked for by the caller.
    fn settle(&mut self, ring: &mut Ring, state: &mut State, current: u32) {
        state.take_over(self.number, &mut self.over);
        for done in self.over.drain(..) {
            let number = done.slot;
            let slot = &mut self.slots[number as usize];
            slot.over = Some(done);
            if let Some(at) = self.active.iter().position(|&active| active == number) {
                self.active.swap_remove(at);
            }
            if number != current && slot.is_free() {
                slot.posted = true;
                ring.post(Token::lower(number));
            }
        }
        if self.active.is_empty() {
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

    fn wait_to_read(&mut self, ring: &mut Ring, socket: Arc<Socket>) {
        if self.reads {
            return;
        }
        let Some(number) = self.find(|slot| slot.read.is_none()) else {
            // Its bell is waited for under the only token there is.
            return self.bell.iter().for_each(|bell| bell.ring());
        };
        match ring.poll(socket.as_fd(), POLLIN, Token::lower(number)) {
            Ok(()) => {
                self.reads = true;
                self.slots[number as usize].read = Some(Read::Socket { _open: socket });
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_for_bell(&mut self, ring: &mut Ring) {
        let Some(bell) = self.bell.clone().filter(|_| !self.reads) else { return };
        let Some(number) = self.find(|slot| slot.read.is_none()) else { return };
        match ring.poll(bell.as_fd(), POLLIN, Token::lower(number)) {
            Ok(()) => {
                self.reads = true;
                self.slots[number as usize].read = Some(Read::Bell);
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_to_write(&mut self, ring: &mut Ring, socket: Arc<Socket>) {
        if self.writes {
            return;
        }
        let Some(number) = self.find(|slot| slot.write.is_none()) else { return };
        match ring.poll(socket.as_fd(), POLLOUT, Token::lower(number)) {
            Ok(()) => {
                self.writes = true;
                self.slots[number as usize].write = Some(socket);
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_until(&mut self, ring: &mut Ring, at: Duration) {
        if self.ticks {
            return;
        }
        let Some(number) = self.find(|slot| !slot.timer) else { return };
        // Kernels before 5.11 have no timeouts for us: then a server that went away is looked for when the next request comes.
        if ring.timeout(Token::lower(number), at).is_ok() {
            self.ticks = true;
            self.slots[number as usize].timer = true;
        }
    }

    /// The youngest request that fits: the oldest are over first.
    fn find(&self, fits: impl Fn(&Slot) -> bool) -> Option<u32> {
        self.active.iter().rev().copied().find(|&number| fits(&self.slots[number as usize]))
    }

    /// Hands out a request that is over, unless the ring still has something under its token.
    fn hand_out(&mut self, number: u32) -> Option<Finished> {
        let slot = &mut self.slots[number as usize];
        if slot.is_free() { slot.over.take() } else { None }
    }
}

impl Channel for NbdChannel {
    /// A server never answers at once.
    fn read_now(&mut self, _offset: u64, _data: &mut [u8]) -> Now {
        Now::Blocked(0)
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Now {
        Now::Blocked(0)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let link = self.link.clone();
        let mut state = link.lock();
        self.active.push(slot);
        state.begin(self.number, slot, io);
        self.settle(ring, &mut state, slot);
        self.hand_out(slot).map_or(Started::Pending, Started::Finished)
    }

    fn finish(&mut self, ring: &mut Ring, token: Token, result: i32) -> Option<Finished> {
        let number = token.as_lower()?;
        let slot = self.slots.get_mut(number as usize)?;
        if result == 0 {
            slot.posted = false;
            return self.hand_out(number);
        }
        let link = self.link.clone();
        let mut state = link.lock();
        let leads = state.leads(self.number);
        if result == -libc::ETIME {
            (slot.timer, self.ticks) = (false, false);
            if leads {
                state.drive();
            }
        } else if result > 0 && result & i32::from(POLLIN) == 0 && slot.write.is_some() || slot.read.is_none()
        {
            (slot.write, self.writes) = (None, false);
            if leads { state.drive() } else { state.send() }
        } else {
            self.reads = false;
            if let Some(Read::Bell) = slot.read.take() {
                self.bell.iter().for_each(|bell| bell.heard());
            } else if leads {
                state.drive();
            }
        }
        self.settle(ring, &mut state, number);
        self.hand_out(number)
    }
}

impl Drop for NbdChannel {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        state.leave(self.number);
        if self.bell.is_none()
            && let Some(spare) = state.release()
        {
            self.shared.keep_spare(spare);
        }
    }
}

/// Why a device could not be opened.
pub(super) fn cannot_open(name: &str, why: &super::socket::Failed) -> Error {
    use super::socket::Failed;
    let error = Error::new(
        crate::ErrorKind::Open,
        match why {
            Failed::System(what, _) => format!("{name}: {what}"),
            Failed::Refused(why) => format!("{name}: {why}"),
        },
    );
    match why {
        Failed::System(_, errno) => error.with_source(*errno),
        Failed::Refused(_) => error,
    }
}
