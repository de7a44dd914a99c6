//! The server: accepts, limits, hands over, stops.
//!
//! ```text
//!   run()            poll(stop event, listeners) --> accept --> a thread: handshake --> ConnectionHandler::serve
//!     clients.rs     who is connected, in which phase; limits, eviction, shutdown
//!     connection.rs  one client's thread, and what its handler is given
//!     hold.rs        connections that come to rest, for another process
//! ```
//!
//! Two limits keep clients from each other's throats. At most `max_handshakes` negotiate at a time;
//! when that is full, the one that has been silent longest makes room, but none before it had
//! [`GRACE`] to begin. At most `max_connections` are served; one more is told so when it asks to
//! start (or closed, if it cannot be told). So a crowd that connects and says nothing costs a good
//! client at most a short wait, and never its place.

mod clients;
mod connection;
mod hold;

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use self::clients::{Clients, Room};
use self::hold::Hold;
use super::{Exports, TlsMode};
use crate::event::{event, raise};
use crate::net::accept::{RECOVER, until_stopped};
use crate::net::{Listener, RateLimit};
use crate::{Error, ErrorKind, Result};

pub use self::connection::{Connection, ConnectionHandler, StopSignal};
pub use self::hold::{Adopted, Begun, Bytes, Carried, Holder, Passage};

/// What a server offers and how much it bears.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What is served.
    pub exports: Exports,
    /// Whether connections are TLS.
    pub tls: TlsMode,
    /// Accept plain connections from other machines.
    pub allow_plaintext_tcp: bool,
    /// Refuse structured replies, and block status with them: small reads cost clients less.
    pub simple_replies: bool,
    /// Clients in the transmission phase at a time.
    pub max_connections: usize,
    /// Clients negotiating at a time.
    pub max_handshakes: usize,
    /// The time a client has from connecting to the transmission phase.
    pub handshake_timeout: Duration,
    /// The time connections have to end by themselves when the server stops.
    pub drain_timeout: Duration,
}

impl ServerConfig {
    /// 64 connections, 128 handshakes of at most 10 s, 30 s to drain, no TLS.
    pub fn new(exports: Exports) -> Self {
        Self {
            exports,
            tls: TlsMode::Off,
            allow_plaintext_tcp: false,
            simple_replies: false,
            max_connections: 64,
            max_handshakes: 128,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A server, ready to [run](Server::run).
pub struct Server {
    shared: Arc<Shared>,
    listeners: Arc<Vec<Listener>>,
}

/// Stops a server, from any thread or, since it only stores a flag and writes to an eventfd, from a
/// signal handler.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Stop>);

/// What every connection's thread sees.
struct Shared {
    config: ServerConfig,
    handler: Arc<dyn ConnectionHandler>,
    clients: Clients,
    stop: Arc<Stop>,
    hold: Hold,
    complaints: Complaints,
}

#[derive(Debug)]
struct Stop {
    stopping: AtomicBool,
    event: OwnedFd,
}

/// Log lines that a client can cause, each kind with its own limit.
#[derive(Debug, Default)]
struct Complaints {
    accept: RateLimit,
    evicted: RateLimit,
    full: RateLimit,
    handshake: RateLimit,
    /// Apart from the handshakes', so that strangers cannot drown what happens to those who are
    /// served.
    served: RateLimit,
}

/// The time a client has to say something before it may be closed to make room for another.
const GRACE: Duration = Duration::from_millis(100);
/// What connections get to notice that their sockets were shut down, when the time to drain is
/// over.
const CUT_OFF: Duration = Duration::from_secs(5);

impl Server {
    /// Puts the parts together. Nothing is accepted before [`run`](Self::run), but clients can
    /// connect and wait.
    ///
    /// # Errors
    /// [`ErrorKind::Plaintext`]: a listener faces other machines, TLS is not required, and
    /// [`allow_plaintext_tcp`](ServerConfig::allow_plaintext_tcp) is not set.
    /// [`ErrorKind::Listen`]: there is no listener, or no descriptor for the server's own use.
    pub fn new(
        config: ServerConfig,
        listeners: Vec<Listener>,
        handler: Arc<dyn ConnectionHandler>,
    ) -> Result<Self> {
        if listeners.is_empty() {
            return Err(Error::new(ErrorKind::Listen, "a server needs a socket to listen on"));
        }
        let forced = matches!(config.tls, TlsMode::Required(_));
        if let Some(open) = listeners.iter().find(|l| l.is_remote() && !forced && !config.allow_plaintext_tcp)
        {
            let remedy = "require TLS, listen on localhost or a Unix socket, or allow plain text by name";
            let context = format!("{open}: data would cross the network in plain text; {remedy}");
            return Err(Error::new(ErrorKind::Plaintext, context));
        }
        let event =
            event().map_err(|source| Error::new(ErrorKind::Listen, "no eventfd").with_source(source))?;
        let shared = Shared {
            clients: Clients::new(config.max_handshakes, config.max_connections),
            config,
            handler,
            stop: Arc::new(Stop { stopping: AtomicBool::new(false), event }),
            hold: Hold::default(),
            complaints: Complaints::default(),
        };
        Ok(Self { shared: Arc::new(shared), listeners: Arc::new(listeners) })
    }

    /// What stops this server.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared.stop))
    }

    /// Serves until stopped: then stops listening, ends the connections' reading, tells their
    /// handlers, and waits for them.
    ///
    /// # Errors
    /// [`ErrorKind::Drain`]: handlers were still at work after [`drain_timeout`](ServerConfig::drain_timeout) and
    /// after their sockets were shut down. Their threads go on; what they own is not free.
    /// [`ErrorKind::Io`]: waiting for clients failed; the server has stopped all the same.
    pub fn run(self) -> Result<()> {
        for listener in &*self.listeners {
            log::info!("serving NBD on {listener}");
        }
        let welcome = |listener: &Listener| self.shared.hold.unless_held(|| self.shared.welcome(listener));
        let accepted = until_stopped(&self.shared.stop.event, &self.listeners, welcome);
        // Closes them and removes Unix sockets: who connects from here on is refused, not kept
        // waiting.
        drop(self.listeners);
        self.shared.stop.stopping.store(true, Ordering::SeqCst);
        let drained = self.shared.drain();
        accepted.map_err(|e| std::io::Error::from(e).into()).and(drained)
    }
}

impl Stopper {
    /// Asks the server to stop. [`Server::run`] returns when it has.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        raise(&self.0.event, 1);
    }
}

impl Stop {
    fn is_set(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// Takes a waiting client in, if there is room or room can be made. `Some` is how long to leave
    /// listeners alone.
    fn welcome(self: &Arc<Self>, listener: &Listener) -> Option<Duration> {
        match self.clients.make_room(Instant::now()) {
            Room::Free => self.accept(listener),
            Room::Evicted(peer) => {
                if let Some(more) = self.complaints.evicted.pass() {
                    log::warn!("too many handshakes: closed {peer} to make room{more}");
                }
                self.clients.wait_for_departure(GRACE);
                None
            }
            Room::After(wait) => Some(wait),
        }
    }

    fn accept(self: &Arc<Self>, listener: &Listener) -> Option<Duration> {
        let socket = match listener.accept() {
            Ok(socket) => socket?,
            Err(error) => {
                if let Some(more) = self.complaints.accept.pass() {
                    log::error!("{listener}: no client can be accepted: {error}{more}");
                }
                return Some(RECOVER);
            }
        };
        if let Err(error) = connection::start(self, socket) {
            if let Some(more) = self.complaints.accept.pass() {
                log::error!("{listener}: no thread for another client: {error}{more}");
            }
            return Some(RECOVER);
        }
        None
    }

    fn drain(&self) -> Result<()> {
        let waiting = self.clients.stop();
        if waiting > 0 {
            log::info!("stopping: {waiting} connections have {:?} to end", self.config.drain_timeout);
        }
        if self.clients.wait_until_empty(self.config.drain_timeout) == 0 {
            return Ok(());
        }
        let late = self.clients.cut_off();
        log::warn!("stopping: closed {late} connections that did not end in {:?}", self.config.drain_timeout);
        match self.clients.wait_until_empty(CUT_OFF) {
            0 => Ok(()),
            stuck => Err(Error::new(ErrorKind::Drain, format!("{stuck} connections are still at work"))),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.shared.config)
            .field("listeners", &self.listeners)
            .finish()
    }
}
