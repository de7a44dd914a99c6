//! The pause of connections, which this process or another one resumes.
//!
//! ```text
//!   Holder::hold      no client is accepted; handshakes end; each connection answers its requests,
//!                     takes no more, and stores its state
//!          |-- go_on      resumes the connections in this process
//!          \-- Carried    in the new server: Server::adopt; all begin together
//! ```
//!
//! The stored state is all that this process has of a connection: the received bytes that were not
//! taken as requests, and the bytes of answers that the client has not received. So a pause does
//! not wait for a client that is slow, or silent in the middle of a request.

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

/// How long handshakes in progress may take to end. The rest are closed.
const HANDSHAKES: Duration = Duration::from_millis(500);
/// How often paused threads are woken again: a thread may have missed a wakeup as it went to sleep.
const AGAIN: Duration = Duration::from_millis(2);
/// How long threads may take to resume.
const GOING_ON: Duration = Duration::from_secs(10);

/// A client's bytes, wiped when they are dropped.
pub type Bytes = Zeroizing<Vec<u8>>;

/// A paused connection, for the new server of a handover.
#[derive(Debug)]
pub struct Carried {
    /// The socket.
    pub socket: Socket,
    /// The result of the negotiation.
    pub negotiated: Negotiated,
    /// Received bytes, which precede those still in the socket.
    pub ahead: Bytes,
    /// Bytes that are sent to the client before all others.
    pub owed: Bytes,
}

/// The means to pause a server's connections.
#[derive(Clone)]
pub struct Holder {
    shared: Arc<Shared>,
    listeners: Weak<Vec<Listener>>,
}

/// The server's side of the pause.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// True while connections are to pause; every connection reads it every turn.
    is_held: AtomicBool,
    /// True while no client is accepted; locked during an accept.
    closed: Mutex<bool>,
    paused: Mutex<BTreeMap<Id, PausedConnection>>,
    changed: Condvar,
}

#[derive(Debug)]
struct PausedConnection {
    negotiated: Negotiated,
    ahead: Bytes,
    owed: Bytes,
}

impl Server {
    /// Returns the means to pause the connections.
    pub fn holder(&self) -> Holder {
        Holder { shared: self.shared.clone(), listeners: Arc::downgrade(&self.listeners) }
    }

    /// Receives the connections of an old server. They begin with [`Adopted::go`].
    ///
    /// # Errors
    /// `Io` when a thread cannot be started.
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
    /// Returns true when clients use TLS, whose sessions cannot be handed over.
    pub fn over_tls(&self) -> bool {
        self.shared.config.tls.config().is_some()
    }

    /// Returns the listening sockets, for the new server of a handover.
    ///
    /// # Errors
    /// `Io` when no descriptor is left; `Listen` when the server is about to end.
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        let listeners = self
            .listeners
            .upgrade()
            .ok_or_else(|| Error::new(ErrorKind::Listen, "the server is about to end"))?;
        listeners.iter().map(Listener::carried).collect()
    }

    /// Makes this process the owner of sockets that an old server passed on.
    ///
    /// # Errors
    /// `Listen`, as [`Listener::is_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.listeners.upgrade().map_or(Ok(()), |listeners| listeners.iter().try_for_each(Listener::is_ours))
    }

    /// Pauses all connections.
    ///
    /// # Errors
    /// `Drain` names a connection that does not pause in time: all connections resume then.
    pub fn hold(&self, until: Instant) -> Result<Vec<Carried>> {
        let Shared { clients, hold, handler, .. } = &*self.shared;
        *lock(&hold.closed) = true;
        clients.end_handshakes(HANDSHAKES);
        hold.is_held.store(true, Ordering::SeqCst);
        loop {
            let late = {
                let paused = lock(&hold.paused);
                clients.serving().into_iter().find(|(id, _)| !paused.contains_key(id))
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

    /// Resumes all connections in this process.
    pub fn go_on(&self) {
        let Shared { hold, handler, .. } = &*self.shared;
        hold.is_held.store(false, Ordering::SeqCst);
        let end = Instant::now() + GOING_ON;
        // A connection that resumes removes its stored state.
        while !lock(&hold.paused).is_empty() && Instant::now() < end {
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
    /// Returns true while no requests are to be taken.
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    /// Accepts a client, unless all connections are paused: then the listeners are not polled for
    /// 10 ms.
    pub(super) fn unless_held(&self, accept: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        let closed = lock(&self.closed);
        if *closed { Some(Duration::from_millis(10)) } else { accept() }
    }

    pub(super) fn add_paused(&self, id: Id, negotiated: Negotiated, ahead: Bytes, owed: Bytes) {
        lock(&self.paused).insert(id, PausedConnection { negotiated, ahead, owed });
        self.changed.notify_all();
    }

    pub(super) fn remove_paused(&self, id: Id) {
        lock(&self.paused).remove(&id);
        self.changed.notify_all();
    }

    fn carried(&self, sockets: &BTreeMap<Id, Socket>) -> Vec<Carried> {
        // The entries are kept: the connections remain this process's until the new server has
        // them.
        let paused = lock(&self.paused);
        let with_socket = paused.iter().filter_map(|(id, one)| Some((one, sockets.get(id)?)));
        let carried = with_socket.map(|(one, socket)| Carried {
            socket: socket.share(),
            negotiated: one.negotiated.clone(),
            ahead: one.ahead.clone(),
            owed: one.owed.clone(),
        });
        carried.collect()
    }

    fn wait(&self, limit: Duration) {
        drop(self.changed.wait_timeout(lock(&self.paused), limit));
    }
}

/// The state of a connection that another process has begun to serve.
#[derive(Debug)]
pub struct Begun {
    /// Received bytes, as [`Carried::ahead`].
    pub ahead: Bytes,
    /// Bytes to be sent first, as [`Carried::owed`].
    pub owed: Bytes,
    /// When the connection begins.
    pub passage: Passage,
}

/// Connections of an old server that wait to begin. Dropping the value without [`go`](Adopted::go)
/// closes them.
#[derive(Debug)]
pub struct Adopted {
    gate: Arc<Gate>,
    count: usize,
}

/// A connection's wait for the gate.
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
    /// Whether the connections begin, once that is decided.
    opens: Option<bool>,
}

impl Adopted {
    /// Waits until every connection is ready to begin.
    ///
    /// # Errors
    /// `Io` when a connection has failed, or is not ready in time.
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

    /// Lets the connections begin.
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
    /// Reports that this connection is ready, and waits. Returns true when it is to begin.
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

/// Locks a mutex. A panic cannot leave the contents half changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
