//! One client: its thread, its handshake, its handler. What goes wrong here ends this connection
//! and no other.

use std::{
    io,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::hold::{Begun, Bytes};
use super::{Shared, clients::Id};
use crate::event::raise;
use crate::nbd::{Admission, Handshake, Negotiated, Refusal, Step, TlsStream, Transport};
use crate::net::{Deadlined, Peer, RateLimit, Socket};
use crate::{Error, Result};

/// A client past its handshake, for its handler.
#[derive(Debug)]
pub struct Connection {
    /// Its bytes: the first one is a request's. The socket is in blocking mode and has no timeouts
    /// set.
    pub transport: Transport,
    /// What was agreed.
    pub negotiated: Negotiated,
    /// Who it is.
    pub peer: Peer,
    /// When to end.
    pub stop: StopSignal,
    /// It was served by another process until now.
    pub begun: Option<Begun>,
}

/// Serves the transmission phase.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Serves one client on this thread until it says goodbye, fails, or the server stops; then the
    /// connection is closed. A panic closes the connection too.
    ///
    /// # Errors
    /// Why the connection ended before its time: it becomes a line in the log.
    fn serve(&self, connection: Connection) -> Result<()>;

    /// How large an export is now, where that changes: what a client that comes now is told.
    fn size(&self, export: usize) -> Option<u64> {
        let _ = export;
        None
    }

    /// Makes the threads that serve look around, whatever they wait for.
    fn rouse(&self) {}
}

/// Tells a handler that the server is stopping: answer what is in flight, flush, and return.
///
/// When that happens, the socket's reading side is shut down, so a blocked read returns with what
/// came before and then the end of the stream. (A TCP client that goes on sending can still be
/// heard, so look at [`is_stopping`](Self::is_stopping) as well.) A handler that waits for other
/// things names an eventfd to be woken by.
#[derive(Debug)]
pub struct StopSignal(Admitted);

impl StopSignal {
    /// Whether the connection is to come to rest: answer what was taken, take no more, and
    /// [lay down](Self::lay_down) the rest.
    pub fn is_held(&self) -> bool {
        self.0.shared.hold.is_held()
    }

    /// The connection rests: what was received and not taken, and what the client has not taken
    /// yet.
    pub fn lay_down(&self, negotiated: Negotiated, ahead: Bytes, owed: Bytes) {
        self.0.shared.hold.lay_down(self.0.id, negotiated, ahead, owed);
    }

    /// It goes on here.
    pub fn take_up(&self) {
        self.0.shared.hold.take_up(self.0.id);
    }

    /// Whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping()
    }

    /// Adds 1 to this eventfd when the server begins to stop, or now if it has. The server keeps a
    /// duplicate.
    ///
    /// # Errors
    /// There is no descriptor left for the duplicate.
    pub fn wake_with(&self, event: impl AsFd) -> io::Result<()> {
        let event = rustix::io::fcntl_dupfd_cloexec(event, 0)?;
        if let Err(event) = self.0.shared.clients.wake_with(self.0.id, event) {
            raise(&event, 1);
        }
        Ok(())
    }
}

/// A day: what a configuration that means "for ever" gets, for a clock has an end.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(24 * 60 * 60);

/// Takes a client in and gives it a thread.
pub(super) fn start(shared: &Arc<Shared>, socket: Socket) -> io::Result<()> {
    let peer = Peer::of(&socket);
    let Some(id) = shared.clients.arrive(socket.share(), peer.clone()) else { return Ok(()) };
    let place = Place(Admitted { shared: Arc::clone(shared), id });
    let deadline = Instant::now() + shared.config.handshake_timeout.min(LONGEST_HANDSHAKE);
    // If there is no thread to be had, dropping the closure gives the place back.
    thread::Builder::new()
        .name(format!("nbd-{id}"))
        .spawn(move || live(&place, socket, peer, deadline))
        .map(drop)
}

/// Gives a client that another process has served until now a thread.
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
        let complaints = &place.0.shared.complaints;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let served = serve(&place.0, Transport::Plain(socket), negotiated, &peer, Some(begun));
            served.unwrap_or_else(|error| complain(&complaints.served, &peer, &error));
        }));
        if outcome.is_err() {
            log::error!("{peer}: its thread panicked; the connection is closed, the others go on");
        }
    };
    thread::Builder::new().name(format!("nbd-{id}")).spawn(body).map(drop)
}

fn live(place: &Place, socket: Socket, peer: Peer, deadline: Instant) {
    let complaints = &place.0.shared.complaints;
    let outcome = catch_unwind(AssertUnwindSafe(|| match negotiate(&place.0, socket, deadline) {
        Ok(Some((transport, negotiated))) => {
            if let Err(error) = serve(&place.0, transport, negotiated, &peer, None) {
                complain(&complaints.served, &peer, &error);
            }
        }
        Ok(None) => log::debug!("{peer}: left during the handshake"),
        Err(error) => complain(&complaints.handshake, &peer, &error),
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

/// A client's place in the table; given back when its thread ends, however it ends.
struct Place(Admitted);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.clients.depart(self.0.id);
        self.0.shared.hold.take_up(self.0.id);
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
            && let Some(more) = self.shared.complaints.full.pass()
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
