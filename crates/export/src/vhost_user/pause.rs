//! The pause of a front end and its rings, for a handover.
//!
//! ```text
//!   VhostUserHolder::hold   no client is accepted; the front end's thread reads no more messages;
//!                           each ring answers its requests, and takes no more
//!          |-- go_on             resumes in this process
//!          \-- CarriedFrontEnd   the new server: VhostUserHolder::adopt, and go_on
//! ```
//!
//! The front end gets no message about the pause. Its messages stay in the socket, its driver's
//! requests in the rings, and kicks in their descriptors.

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

/// How often the state of the connections is checked during a pause.
const AGAIN: Duration = Duration::from_millis(2);

/// The state of the pause of a front end's thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// Messages are read.
    #[default]
    No,
    /// The thread is asked to read no more messages.
    Asked,
    /// The thread reads no messages.
    Rests,
}

/// The means to pause a front end and its rings.
#[derive(Clone)]
pub struct VhostUserHolder {
    shared: Arc<Shared>,
    gate: Gate,
}

impl VhostUserServer {
    /// Returns the means to pause the front end.
    pub fn holder(&self) -> VhostUserHolder {
        VhostUserHolder { shared: self.shared.clone(), gate: self.attendant.gate() }
    }
}

impl VhostUserHolder {
    /// Returns the listening socket, for the new server of a handover.
    ///
    /// # Errors
    /// The kinds of [`Gate::listeners`].
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        self.gate.listeners()
    }

    /// Makes this process the owner of the socket that an old server passed on.
    ///
    /// # Errors
    /// The kinds of [`Gate::are_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.gate.are_ours()
    }

    /// Receives the front end of an old server, which serves it until [`VhostUserHolder::go_on`];
    /// from then on this server does.
    ///
    /// # Errors
    /// `Unsupported` when the front end cannot be served here as it was there; `Io` when a thread
    /// cannot be started.
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

    /// Pauses the front end, if one is connected.
    ///
    /// # Errors
    /// `Drain` when it stops in the middle of a message, or its requests are not answered in time;
    /// `Io` when no descriptor is left. The front end stays paused all the same.
    pub fn hold(&self, until: Instant) -> Result<Option<CarriedFrontEnd>> {
        let late = |what| Err(Error::new(ErrorKind::Drain, what));
        self.gate.close(usize::MAX, Duration::ZERO);
        let mut state = self.shared.lock();
        state.hold = Hold::Asked;
        raise(&self.shared.wake, 1);
        self.shared.changed.notify_all();
        // A further front end that waits for the current one is soon served, or refused.
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

    /// Resumes the front end, or begins to serve one that an old server passed on.
    pub fn go_on(&self) {
        let mut state = self.shared.lock();
        if state.hold == Hold::No {
            return;
        }
        // If the rings are not paused, the front end's thread may be changing them.
        let rings_rest = std::mem::take(&mut state.rings_rest);
        let session = state.session.clone().filter(|_| rings_rest);
        drop(state);
        // Rings are resumed first: the front end's next message may stop them.
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
    /// Waits until a message has arrived, and may be read.
    pub(super) fn next_message(&self, socket: &UnixStream) -> io::Result<()> {
        loop {
            // A front end that has disconnected need not pause, and makes room.
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

    /// Waits while no message may be read.
    fn rest(&self) {
        let mut state = self.lock();
        while state.hold != Hold::No {
            // A new pause may have begun before this thread has seen the end of the last one.
            if state.hold == Hold::Asked {
                state.hold = Hold::Rests;
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
