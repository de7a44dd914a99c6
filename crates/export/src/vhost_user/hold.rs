//! A front end that comes to rest, so that another process may go on with it.
//!
//! ```text
//!   VhostUserHolder::hold   nobody is let in; the front end's thread reads no more messages; each ring answers what it has
//!                           taken, and takes no more
//!          |-- go_on             as if nothing had been
//!          \-- CarriedFrontEnd   the next process: VhostUserHolder::adopt, and it begins when go_on says so
//! ```
//!
//! The front end is told nothing. What it says meanwhile stays in the socket, what its driver
//! offers stays in the rings, and kicks stay in their descriptors.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use super::carried::CarriedFrontEnd;
use super::device::Device;
use super::server::{Shared, VhostUserServer, has_hung_up, lock};
use super::session::Session;
use crate::event::{raise, still};
use crate::net::{CarriedListener, Gate};
use crate::{Error, ErrorKind, Result};

/// How often it is looked whether those who are let in have come to rest or gone.
const AGAIN: Duration = Duration::from_millis(2);

/// How far the thread of a front end is on its way to rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// Messages are read.
    #[default]
    No,
    /// None is to be read any more.
    Asked,
    /// None is.
    Rests,
}

/// Brings a front end and its rings to rest.
#[derive(Clone)]
pub struct VhostUserHolder {
    shared: Arc<Shared>,
    gate: Gate,
}

impl VhostUserServer {
    /// What brings it to rest.
    pub fn holder(&self) -> VhostUserHolder {
        VhostUserHolder { shared: self.shared.clone(), gate: self.attendant.gate() }
    }
}

impl VhostUserHolder {
    /// The listening socket, for another process.
    ///
    /// # Errors
    /// As [`Gate::listeners`].
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        self.gate.listeners()
    }

    /// The socket that was another process's is this one's from now on.
    ///
    /// # Errors
    /// As [`Gate::are_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.gate.are_ours()
    }

    /// Takes the front end of another process over, which serves it until
    /// [`VhostUserHolder::go_on`]: from then on this one does.
    ///
    /// # Errors
    /// `Unsupported` when it cannot be served here as it was there; `Io` when there is no thread
    /// for it.
    pub fn adopt(&self, front: CarriedFrontEnd) -> Result<()> {
        let Shared { mapping, queues, serial, .. } = &*self.shared;
        let device = Device::new(mapping.clone(), *queues, *serial);
        let (session, handler) = Session::take_over(device, front).map_err(|e| {
            let context = "the virtual machine cannot be served here as it was";
            Error::new(ErrorKind::Unsupported, context).with_source(e)
        })?;
        let mut state = self.shared.lock();
        (state.session, state.rings_rest) = (Some(session.clone()), true);
        drop(state);
        let (shared, place) = (self.shared.clone(), self.gate.occupy());
        let body = move || {
            shared.attend(&session, handler);
            drop(place);
        };
        let started = thread::Builder::new().name("vhost-user".into()).spawn(body);
        let no_thread = |e| Error::new(ErrorKind::Io, "no thread for the virtual machine").with_source(e);
        started.map(drop).map_err(no_thread)
    }

    /// Brings the front end to rest, if there is one.
    ///
    /// # Errors
    /// `Drain` when it stops in the middle of a message, or requests of its are not answered by
    /// then; `Io` when there is no descriptor left. It is held all the same.
    pub fn hold(&self, until: Instant) -> Result<Option<CarriedFrontEnd>> {
        let late = |what| Err(Error::new(ErrorKind::Drain, what));
        self.gate.close(usize::MAX, Duration::ZERO);
        let mut state = self.shared.lock();
        state.hold = Hold::Asked;
        raise(&self.shared.wake, 1);
        self.shared.changed.notify_all();
        // One who waits for the place of the one before has it soon, or is turned away.
        let session = loop {
            match (&state.session, state.hold) {
                (None, _) if self.gate.serving() == 0 => break None,
                (Some(session), Hold::Rests) if self.gate.serving() == 1 => break Some(session.clone()),
                _ if Instant::now() >= until => {
                    return late("its virtual machine's front end does not come to rest in time");
                }
                _ => {}
            }
            let waited = self.shared.changed.wait_timeout(state, AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        let Some(session) = session else { return Ok(None) };
        state.rings_rest = true;
        drop(state);
        if !lock(&session.device).rest(until) {
            return late("requests of its virtual machine are not answered in time");
        }
        let no = |e| Error::new(ErrorKind::Io, "its virtual machine cannot be handed over").with_source(e);
        session.carried().map(Some).map_err(no)
    }

    /// As if nothing had been; or, for what was taken over, from now on.
    pub fn go_on(&self) {
        let mut state = self.shared.lock();
        if state.hold == Hold::No {
            return;
        }
        // Else the front end's thread may be in the middle of something with them.
        let rings_rest = std::mem::take(&mut state.rings_rest);
        let session = state.session.clone().filter(|_| rings_rest);
        drop(state);
        // First: a message may want to stop them.
        if let Some(session) = session {
            lock(&session.device).go_on();
        }
        self.shared.lock().hold = Hold::No;
        self.shared.changed.notify_all();
        self.gate.open();
    }
}

impl fmt::Debug for VhostUserHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VhostUserHolder").finish_non_exhaustive()
    }
}

impl Shared {
    /// Waits until there is a message to be read, and it may be.
    pub(super) fn next_message(&self, socket: &UnixStream) -> io::Result<()> {
        loop {
            // Who has hung up has nothing to come to rest for, and makes room.
            if !has_hung_up(socket) {
                self.rest();
            }
            let [socket, wake] = [socket.as_fd(), self.wake.as_fd()];
            let mut fds = [socket, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            retry_on_intr(|| poll(&mut fds, None))?;
            if fds[1].revents().is_empty() || fds[0].revents().contains(PollFlags::HUP) {
                return Ok(());
            }
            still(wake);
        }
    }

    /// Waits as long as no message is to be read.
    fn rest(&self) {
        let mut state = self.lock();
        while state.hold != Hold::No {
            // Which may be again, before this thread has seen that it could go on.
            if state.hold == Hold::Asked {
                state.hold = Hold::Rests;
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
