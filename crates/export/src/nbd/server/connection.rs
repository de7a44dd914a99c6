//! A client's connection: its thread, its handshake, its handler. An error ends this connection
//! only.

use std::{
    io,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::pause::{Begun, Bytes};
use super::{Shared, clients::Id};
use crate::event::raise;
use crate::nbd::{Admission, Handshake, Negotiated, Refusal, Step, TlsStream, Transport};
use crate::net::{Deadlined, Peer, RateLimit, Socket};
use crate::{Error, Result};

/// A client after its handshake, for its handler.
#[derive(Debug)]
pub struct Connection {
    /// The transport: its first byte is a request's. The socket is in blocking mode without
    /// timeouts.
    pub transport: Transport,
    /// The result of the negotiation.
    pub negotiated: Negotiated,
    /// The client's process or address.
    pub peer: Peer,
    /// The signal to stop or to pause.
    pub stop: StopSignal,
    /// The rest of the old server's state, if a handover brought the connection.
    pub begun: Option<Begun>,
}

/// Serves the transmission phase.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Serves one client on this thread until it disconnects, fails, or the server stops; then the
    /// connection is closed. A panic closes the connection, too.
    ///
    /// # Errors
    /// The error that ended the connection early: it is logged.
    fn serve(&self, connection: Connection) -> Result<()>;

    /// Returns an export's current size, where the size can change: new clients get it in the
    /// handshake.
    fn size(&self, export: usize) -> Option<u64> {
        let _ = export;
        None
    }

    /// Wakes the threads that serve, whatever they wait for.
    fn rouse(&self) {}
}

/// The signal that the server is stopping: the handler answers the requests in flight, flushes, and
/// returns.
///
/// The socket's reading side is shut down at the same time, so a blocked read returns the bytes
/// received before and then the end of the stream. (Bytes that a TCP client sends later can still
/// arrive, so the handler checks [`is_stopping`](Self::is_stopping) as well.) A handler that waits
/// for other events registers an eventfd with [`wake_with`](Self::wake_with).
#[derive(Debug)]
pub struct StopSignal(Admitted);

impl StopSignal {
    /// Returns true while the connection is to pause: the handler answers the requests it has
    /// taken, takes no more, and calls [`add_paused`](Self::add_paused).
    pub fn is_held(&self) -> bool {
        self.0.shared.hold.is_held()
    }

    /// Stores the paused connection's state: bytes received for which no request was taken, and
    /// bytes still to be sent to the client.
    pub fn add_paused(&self, negotiated: Negotiated, ahead: Bytes, owed: Bytes) {
        self.0.shared.hold.add_paused(self.0.id, negotiated, ahead, owed);
    }

    /// Removes the stored state: the connection is served by this process again.
    pub fn remove_paused(&self) {
        self.0.shared.hold.remove_paused(self.0.id);
    }

    /// Notes that the connection has no requests in flight and takes no more. Clients that arrived
    /// later need not wait until it ends.
    pub fn requests_ended(&self) {
        self.0.shared.clients.requests_ended(self.0.id);
    }

    /// Notes the client's request to disconnect.
    pub(crate) fn disconnects(&self) {
        self.0.shared.clients.disconnects(self.0.id);
    }

    /// Returns true when another client has left without a request to disconnect, and its requests
    /// have not ended. A client with several connections repeats requests of one that broke on
    /// another one: what it writes there must wait until the old requests have ended.
    pub fn others_have_left(&self) -> bool {
        self.0.shared.clients.others_have_left(self.0.id)
    }

    /// Returns true when the client has closed its side of this connection.
    pub fn has_left(&self) -> bool {
        self.0.shared.clients.has_left(self.0.id)
    }

    /// Returns true when the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping()
    }

    /// Adds 1 to this eventfd when the server begins to stop, or at once if it has begun. The
    /// server keeps a duplicate.
    ///
    /// # Errors
    /// The error of the duplication.
    pub fn wake_with(&self, event: impl AsFd) -> io::Result<()> {
        let event = rustix::io::fcntl_dupfd_cloexec(event, 0)?;
        if let Err(event) = self.0.shared.clients.wake_with(self.0.id, event) {
            raise(&event, 1);
        }
        Ok(())
    }
}

/// A day: the limit for a timeout that stands for "never", since a clock's range is finite.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(24 * 60 * 60);

/// Registers a client and starts its thread.
pub(super) fn start(shared: &Arc<Shared>, socket: Socket) -> io::Result<()> {
    let peer = Peer::of(&socket);
    let Some(id) = shared.clients.arrive(socket.share(), peer.clone()) else { return Ok(()) };
    let place = Place(Admitted { shared: Arc::clone(shared), id });
    let deadline = Instant::now() + shared.config.handshake_timeout.min(LONGEST_HANDSHAKE);
    // If the thread cannot start, dropping the closure removes the client from the table.
    thread::Builder::new()
        .name(format!("nbd-{id}"))
        .spawn(move || live(&place, socket, peer, deadline))
        .map(drop)
}

/// Starts a thread for a client that the old server of a handover has served.
pub(super) fn adopt(
    shared: &Arc<Shared>,
    socket: Socket,
    negotiated: Negotiated,
    begun: Begun,
) -> io::Result<()> {
    let peer = Peer::of(&socket);
    let id = shared.clients.adopt(socket.share(), peer.clone());
    let id = id.ok_or_else(|| io::Error::other("the server is stopping"))?;
    let place = Place(Admitted { shared: Arc::clone(shared), id });
    let body = move || {
        let failure_log = &place.0.shared.failure_log;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let served = serve(&place.0, Transport::Plain(socket), negotiated, &peer, Some(begun));
            served.unwrap_or_else(|error| complain(&failure_log.served, &peer, &error));
        }));
        if outcome.is_err() {
            log::error!("{peer}: its thread panicked; the connection is closed, the others go on");
        }
    };
    thread::Builder::new().name(format!("nbd-{id}")).spawn(body).map(drop)
}

fn live(place: &Place, socket: Socket, peer: Peer, deadline: Instant) {
    let failure_log = &place.0.shared.failure_log;
    let outcome = catch_unwind(AssertUnwindSafe(|| match negotiate(&place.0, socket, deadline) {
        Ok(Some((transport, negotiated))) => {
            if !place.0.shared.clients.wait_for_left(place.0.id) {
                return;
            }
            if let Err(error) = serve(&place.0, transport, negotiated, &peer, None) {
                complain(&failure_log.served, &peer, &error);
            }
        }
        Ok(None) => log::debug!("{peer}: left during the handshake"),
        Err(error) => complain(&failure_log.handshake, &peer, &error),
    }));
    if outcome.is_err() {
        log::error!("{peer}: its thread panicked; the connection is closed, the others go on");
    }
}

fn serve(
    admitted: &Admitted,
    transport: Transport,
    negotiated: Negotiated,
    peer: &Peer,
    begun: Option<Begun>,
) -> Result<()> {
    let export = &admitted.shared.config.exports[negotiated.export].name;
    let tls = if negotiated.tls { " over TLS" } else { "" };
    log::info!("{peer}: serving export {export:?}{tls}");
    let stop = StopSignal(admitted.clone());
    admitted.shared.handler.serve(Connection { transport, negotiated, peer: peer.clone(), stop, begun })?;
    log::info!("{peer}: done");
    Ok(())
}

fn complain(limit: &RateLimit, peer: &Peer, error: &Error) {
    if let Some(more) = limit.pass() {
        let error = underseal_error::with_causes(error);
        log::warn!("{peer}: {error}{more}");
    }
}

fn negotiate(
    admitted: &Admitted,
    socket: Socket,
    deadline: Instant,
) -> Result<Option<(Transport, Negotiated)>> {
    let config = &admitted.shared.config;
    let exports = config.exports.sized(|number| admitted.shared.handler.size(number));
    let mut handshake =
        Handshake::new(&exports, config.tls.policy(), admitted).with_simple_replies(config.simple_replies);
    let step = handshake.run(&mut Deadlined { socket: &socket, deadline })?;
    match (step, config.tls.config()) {
        (Step::Ready(negotiated), _) => Ok(Some((Transport::Plain(socket), negotiated))),
        (Step::StartTls, Some(tls)) => {
            let mut session = tls.accept(&socket, deadline)?;
            let mut io = Deadlined { socket: &socket, deadline };
            match handshake.run(&mut rustls::Stream::new(&mut session, &mut io))? {
                Step::Ready(negotiated) => {
                    Ok(Some((Transport::Tls(Box::new(TlsStream { session, socket })), negotiated)))
                }
                Step::Left | Step::StartTls => Ok(None),
            }
        }
        (Step::Left | Step::StartTls, _) => Ok(None),
    }
}

/// A client's entry in the table, removed when its thread ends, however it ends.
struct Place(Admitted);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.clients.depart(self.0.id);
        self.0.shared.hold.remove_paused(self.0.id);
    }
}

/// The server as one client's handshake and handler see it.
#[derive(Clone)]
struct Admitted {
    shared: Arc<Shared>,
    id: Id,
}

impl Admission for Admitted {
    fn heard(&self) {
        self.shared.clients.heard(self.id);
    }

    fn admit(&self) -> std::result::Result<(), Refusal> {
        let admitted = self.shared.clients.admit(self.id);
        if let Err(Refusal::Full(limit)) = admitted
            && let Some(more) = self.shared.failure_log.full.pass()
        {
            log::warn!("all {limit} connections are taken: turned a client away{more}");
        }
        admitted
    }

    fn stopping(&self) -> bool {
        self.shared.stop.is_set()
    }
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}
