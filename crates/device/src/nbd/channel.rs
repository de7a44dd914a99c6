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
    reads: Option<Read>,
    writes: bool,
    ticks: bool,
    over: Vec<Finished>,
}

/// A request, and what the ring has under its token.
#[derive(Default)]
struct Slot {
    /// What can be read that is waited for.
    read: Option<Read>,
    write: bool,
    /// Polls that the kernel has.
    polls: u32,
    /// The sockets that they are about stay open.
    open: Vec<Arc<Socket>>,
    timer: bool,
    posted: bool,
    over: Option<Finished>,
}

#[derive(Clone, Copy)]
enum Read {
    Socket,
    Bell,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.polls == 0 && !self.timer && !self.posted
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
            reads: None,
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
        match self.reads {
            Some(Read::Socket) => return,
            // It leads since it began to wait for its bell. That wait has to end first.
            Some(Read::Bell) => return self.bell.iter().for_each(|bell| bell.ring()),
            None => {}
        }
        let Some(number) = self.youngest() else { return };
        match ring.poll(socket.as_fd(), POLLIN, Token::lower(number)) {
            Ok(()) => {
                self.reads = Some(Read::Socket);
                let slot = &mut self.slots[number as usize];
                slot.read = self.reads;
                slot.polls += 1;
                slot.open.push(socket);
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_for_bell(&mut self, ring: &mut Ring) {
        let Some(bell) = self.bell.clone().filter(|_| self.reads.is_none()) else { return };
        let Some(number) = self.youngest() else { return };
        match ring.poll(bell.as_fd(), POLLIN, Token::lower(number)) {
            Ok(()) => {
                self.reads = Some(Read::Bell);
                let slot = &mut self.slots[number as usize];
                slot.read = self.reads;
                slot.polls += 1;
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_to_write(&mut self, ring: &mut Ring, socket: Arc<Socket>) {
        if self.writes {
            return;
        }
        let Some(number) = self.youngest() else { return };
        match ring.poll(socket.as_fd(), POLLOUT, Token::lower(number)) {
            Ok(()) => {
                self.writes = true;
                let slot = &mut self.slots[number as usize];
                slot.write = true;
                slot.polls += 1;
                slot.open.push(socket);
            }
            Err(_) => self.wait_until(ring, monotonic() + SOON),
        }
    }

    fn wait_until(&mut self, ring: &mut Ring, at: Duration) {
        if self.ticks {
            return;
        }
        let Some(number) = self.youngest() else { return };
        // Kernels before 5.11 have no timeouts for us: then a server that went away is looked for when the next request comes.
        if ring.timeout(Token::lower(number), at).is_ok() {
            self.ticks = true;
            self.slots[number as usize].timer = true;
        }
    }

    /// Under whose token is waited: the oldest are over first.
    fn youngest(&self) -> Option<u32> {
        self.active.last().copied()
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
                state.drive(false);
            }
        } else {
            slot.polls = slot.polls.saturating_sub(1);
            if slot.polls == 0 {
                slot.open.clear();
            }
            // An error may be either one's: then both are waited for anew, and what is left comes for nothing.
            let (can_read, can_write) = (result & i32::from(POLLIN) != 0, result & i32::from(POLLOUT) != 0);
            let (can_read, can_write) =
                if result < 0 || !(can_read || can_write) { (true, true) } else { (can_read, can_write) };
            let read = if can_read { slot.read.take() } else { None };
            self.reads = self.reads.filter(|_| read.is_none());
            self.writes &= !(can_write && std::mem::take(&mut slot.write));
            if let Some(Read::Bell) = read {
                self.bell.iter().for_each(|bell| bell.heard());
            }
            if leads { state.drive(matches!(read, Some(Read::Socket))) } else { state.send() }
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
