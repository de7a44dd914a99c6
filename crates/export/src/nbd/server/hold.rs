//! Connections that come to rest, to go on in this process or in another one.
//!
//! ```text
//!   Holder::hold      nobody is accepted; handshakes end; each connection answers what it has taken, takes no more, and
//!                     lays down what the next process needs to know
//!          |-- go_on      as if nothing had been
//!          \-- Carried    the next process: Server::adopt, and all begin at once when it says so
//! ```
//!
//! What is laid down is all that this process has of a connection: the bytes that it received and
//! has not taken up, and those of answers that the client has not taken. So nobody waits for a
//! client that is slow, or silent in the middle of a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::clients::Id;
use super::{Server, Shared, connection};
use crate::nbd::Negotiated;
use crate::net::{CarriedListener, Listener, Socket};
use crate::{Error, ErrorKind, Result};

/// How long handshakes that are under way may take to end. Those that do not are closed.
const HANDSHAKES: Duration = Duration::from_millis(500);
/// How often threads are told that have not come to look: one may have been about to sleep.
const AGAIN: Duration = Duration::from_millis(2);
/// How long threads may take to go on.
const GOING_ON: Duration = Duration::from_secs(10);

/// A client's bytes, wiped when they are dropped.
pub type Bytes = Zeroizing<Vec<u8>>;

/// A connection at rest, for another process.
#[derive(Debug)]
pub struct Carried {
    /// Its socket.
    pub socket: Socket,
    /// What was agreed.
    pub negotiated: Negotiated,
    /// Bytes that were received: they come before those that the socket has.
    pub ahead: Bytes,
    /// Bytes that the client has not taken yet: they go out before all others.
    pub owed: Bytes,
}

/// Brings a server's connections to rest.
#[derive(Clone)]
pub struct Holder {
    shared: Arc<Shared>,
    listeners: Weak<Vec<Listener>>,
}

/// The server's side of it.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Looked at by every connection, every turn.
    is_held: AtomicBool,
    /// Nobody is accepted; locked while somebody is.
    closed: Mutex<bool>,
    laid_down: Mutex<BTreeMap<Id, LaidDown>>,
    changed: Condvar,
}

#[derive(Debug)]
struct LaidDown {
    negotiated: Negotiated,
    ahead: Bytes,
    owed: Bytes,
}

impl Server {
    /// What brings its connections to rest.
    pub fn holder(&self) -> Holder {
        Holder { shared: self.shared.clone(), listeners: Arc::downgrade(&self.listeners) }
    }

    /// Takes connections of another process's over. They begin when [`Adopted::go`] says so.
    ///
    /// # Errors
    /// `Io` when there is no thread for one.
    pub fn adopt(&self, connections: Vec<Carried>) -> Result<Adopted> {
        let gate = Arc::new(Gate::default());
        let adopted = Adopted { gate: gate.clone(), count: connections.len() };
        for Carried { socket, negotiated, ahead, owed } in connections {
            let begun = Begun { ahead, owed, passage: Passage { gate: gate.clone(), has_waited: false } };
            connection::adopt(&self.shared, socket, negotiated, begun)
                .map_err(|e| Error::new(ErrorKind::Io, "no thread for a connection").with_source(e))?;
        }
        Ok(adopted)
    }
}

impl Holder {
    /// Whether clients are served over TLS, whose sessions no other process can go on with.
    pub fn over_tls(&self) -> bool {
        self.shared.config.tls.config().is_some()
    }

    /// The listening sockets, for another process.
    ///
    /// # Errors
    /// `Io` when there is no descriptor left; `Listen` when the server is about to end.
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        let listeners = self
            .listeners
            .upgrade()
            .ok_or_else(|| Error::new(ErrorKind::Listen, "the server is about to end"))?;
        listeners.iter().map(Listener::carried).collect()
    }

    /// Sockets that were another process's are this one's from now on.
    ///
    /// # Errors
    /// As [`Listener::is_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.listeners.upgrade().map_or(Ok(()), |listeners| listeners.iter().try_for_each(Listener::is_ours))
    }

    /// Brings all connections to rest.
    ///
    /// # Errors
    /// `Drain` names one that does not come to rest until then: all go on.
    pub fn hold(&self, until: Instant) -> Result<Vec<Carried>> {
        let Shared { clients, hold, handler, .. } = &*self.shared;
        *lock(&hold.closed) = true;
        clients.end_handshakes(HANDSHAKES);
        hold.is_held.store(true, Ordering::SeqCst);
        loop {
            let late = {
                let laid_down = lock(&hold.laid_down);
                clients.serving().into_iter().find(|(id, _)| !laid_down.contains_key(id))
            };
            let Some((_, peer)) = late else { break };
            if Instant::now() >= until {
                self.go_on();
                let context = format!("{peer} did not come to rest in time");
                return Err(Error::new(ErrorKind::Drain, context));
            }
            handler.rouse();
            hold.wait(AGAIN);
        }
        let carried = hold.carried(&clients.sockets());
        if carried.iter().any(|one| one.negotiated.tls) {
            self.go_on();
            return Err(Error::new(ErrorKind::Unsupported, "a client has come over TLS"));
        }
        Ok(carried)
    }

    /// Lets them go on as if nothing had been.
    pub fn go_on(&self) {
        let Shared { hold, handler, .. } = &*self.shared;
        hold.is_held.store(false, Ordering::SeqCst);
        let end = Instant::now() + GOING_ON;
        // Who lays down nothing any more takes its entry away.
        while !lock(&hold.laid_down).is_empty() && Instant::now() < end {
            handler.rouse();
            hold.wait(AGAIN);
        }
        *lock(&hold.closed) = false;
    }
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holder").finish_non_exhaustive()
    }
}

impl Hold {
    /// Whether nothing more is to be taken.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    /// Accepts somebody, unless all are at rest: then listeners are left alone for a moment.
    pub(super) fn unless_held(&self, accept: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        let closed = lock(&self.closed);
        if *closed { Some(Duration::from_millis(10)) } else { accept() }
    }

    pub(super) fn lay_down(&self, id: Id, negotiated: Negotiated, ahead: Bytes, owed: Bytes) {
        lock(&self.laid_down).insert(id, LaidDown { negotiated, ahead, owed });
        self.changed.notify_all();
    }

    pub(super) fn take_up(&self, id: Id) {
        lock(&self.laid_down).remove(&id);
        self.changed.notify_all();
    }

    fn carried(&self, sockets: &BTreeMap<Id, Socket>) -> Vec<Carried> {
        // They stay where they are, too: nothing has happened to a connection until another process
        // has it.
        let laid_down = lock(&self.laid_down);
        let with_socket = laid_down.iter().filter_map(|(id, one)| Some((one, sockets.get(id)?)));
        let carried = with_socket.map(|(one, socket)| Carried {
            socket: socket.share(),
            negotiated: one.negotiated.clone(),
            ahead: one.ahead.clone(),
            owed: one.owed.clone(),
        });
        carried.collect()
    }

    fn wait(&self, limit: Duration) {
        drop(self.changed.wait_timeout(lock(&self.laid_down), limit));
    }
}

/// A connection that goes on where another process left it.
#[derive(Debug)]
pub struct Begun {
    /// As [`Carried::ahead`].
    pub ahead: Bytes,
    /// As [`Carried::owed`].
    pub owed: Bytes,
    /// When it begins.
    pub passage: Passage,
}

/// Connections that were taken over and wait. Dropping it without [`go`](Adopted::go) closes them.
#[derive(Debug)]
pub struct Adopted {
    gate: Arc<Gate>,
    count: usize,
}

/// One connection's way through the gate.
#[derive(Debug)]
pub struct Passage {
    gate: Arc<Gate>,
    has_waited: bool,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<At>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct At {
    waiting: usize,
    failed: usize,
    /// Whether they begin, once that is known.
    opens: Option<bool>,
}

impl Adopted {
    /// Waits until each has all that it needs.
    ///
    /// # Errors
    /// `Io` when one has not, or not until then.
    pub fn ready(&self, until: Instant) -> Result<()> {
        let mut at = lock(&self.gate.state);
        while at.waiting < self.count {
            let left = until.saturating_duration_since(Instant::now());
            if at.failed > 0 || left.is_zero() {
                return Err(Error::new(ErrorKind::Io, "not all connections can be served here"));
            }
            at = self.gate.changed.wait_timeout(at, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// They begin.
    pub fn go(self) {
        self.gate.open(true);
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        self.gate.open(false);
    }
}

impl Gate {
    fn open(&self, opens: bool) {
        lock(&self.state).opens.get_or_insert(opens);
        self.changed.notify_all();
    }
}

impl Passage {
    /// All is ready here. Whether to begin, once that is known.
    pub fn wait(mut self) -> bool {
        self.has_waited = true;
        let mut at = lock(&self.gate.state);
        at.waiting += 1;
        self.gate.changed.notify_all();
        loop {
            if let Some(opens) = at.opens {
                return opens;
            }
            at = self.gate.changed.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if !self.has_waited {
            lock(&self.gate.state).failed += 1;
            self.gate.changed.notify_all();
        }
    }
}

/// What is under these locks is never left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
