//! The NBD server: accepts clients, limits them, hands connections over, stops.
//!
//! ```text
//!   run()            poll(stop event, listeners) --> accept --> thread: handshake --> serve
//!     clients.rs     the table of clients and their phases; limits, eviction, shutdown
//!     connection.rs  one client's thread, and the handler's view of it
//!     pause.rs       paused connections, for a handover
//! ```
//!
//! Two limits protect clients from each other. At most `max_handshakes` clients negotiate at a
//! time; beyond that, the client that has been silent longest is closed, but only after [`GRACE`].
//! At most `max_connections` clients are served; a further one gets an error when it asks to start
//! (or is closed, if EXPORT_NAME permits no error). So a crowd of silent connections costs a good
//! client at most a short wait, and never its connection.
//!
//! A client is served when the requests of all clients that were admitted before it, and have left,
//! have ended: they must not change what it writes. Those of a client that leaves without a request
//! to disconnect are given up. A client that is being served already waits likewise before it
//! changes the volume: it may be another connection of the same one.

mod clients;
mod connection;
mod pause;

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
use self::pause::Hold;
use super::{Exports, TlsMode};
use crate::event::{event, raise};
use crate::net::accept::{RECOVER, until_stopped};
use crate::net::{Listener, RateLimit};
use crate::{Error, ErrorKind, Result};

pub use self::connection::{Connection, ConnectionHandler, StopSignal};
pub use self::pause::{Adopted, Begun, Bytes, Carried, Holder, Passage};

/// The configuration of an NBD server: exports and limits.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The exports.
    pub exports: Exports,
    /// How connections use TLS.
    pub tls: TlsMode,
    /// Permits connections from other machines without TLS.
    pub allow_plaintext_tcp: bool,
    /// Refuses structured replies, and with them block status: small reads then cost clients less.
    pub simple_replies: bool,
    /// The limit of concurrent clients in the transmission phase.
    pub max_connections: usize,
    /// The limit of concurrent handshakes.
    pub max_handshakes: usize,
    /// The time limit for a handshake, from the connection to the transmission phase.
    pub handshake_timeout: Duration,
    /// How long connections may take to end when the server stops.
    pub drain_timeout: Duration,
}

impl ServerConfig {
    /// Default limits: 64 connections, 128 handshakes of at most 10 s, 30 s to drain, no TLS.
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

/// An NBD server, ready to [run](Server::run).
pub struct Server {
    shared: Arc<Shared>,
    listeners: Arc<Vec<Listener>>,
}

/// Stops a server, from any thread and from a signal handler: it only stores a flag and writes to
/// an eventfd.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Stop>);

/// The state that all connections' threads share.
struct Shared {
    config: ServerConfig,
    handler: Arc<dyn ConnectionHandler>,
    clients: Clients,
    stop: Arc<Stop>,
    hold: Hold,
    failure_log: RateLimitedLog,
}

#[derive(Debug)]
struct Stop {
    stopping: AtomicBool,
    event: OwnedFd,
}

/// Log lines that a client can cause, each kind with its rate limit.
#[derive(Debug, Default)]
struct RateLimitedLog {
    accept: RateLimit,
    evicted: RateLimit,
    full: RateLimit,
    handshake: RateLimit,
    /// A limit apart from that of handshakes, so that unauthenticated clients cannot suppress the
    /// log lines of connections in the transmission phase.
    served: RateLimit,
}

/// How long a client may be silent before it can be closed to make room.
const GRACE: Duration = Duration::from_millis(100);
/// How long connections may take to end once their sockets are shut down, after the drain timeout.
const CUT_OFF: Duration = Duration::from_secs(5);

impl Server {
    /// A server over `listeners`. No client is accepted before [`run`](Self::run), but clients can
    /// connect and wait.
    ///
    /// # Errors
    /// [`ErrorKind::Plaintext`]: a listener is reachable from other machines, TLS is not required,
    /// and [`allow_plaintext_tcp`](ServerConfig::allow_plaintext_tcp) is not set.
    /// [`ErrorKind::Listen`]: no listener was given, or no descriptor is left for the server.
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
            failure_log: RateLimitedLog::default(),
        };
        Ok(Self { shared: Arc::new(shared), listeners: Arc::new(listeners) })
    }

    /// Returns the means to stop this server.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared.stop))
    }

    /// Serves until stopped: then stops listening, shuts down the connections' reading sides,
    /// notifies their handlers, and waits for them.
    ///
    /// # Errors
    /// [`ErrorKind::Drain`]: handlers were still running after
    /// [`drain_timeout`](ServerConfig::drain_timeout) and after their sockets were shut down. Their
    /// threads continue; their memory is not freed. [`ErrorKind::Io`]: waiting for clients failed;
    /// the server has stopped all the same.
    pub fn run(self) -> Result<()> {
        for listener in &*self.listeners {
            log::info!("serving NBD on {listener}");
        }
        let welcome = |listener: &Listener| self.shared.hold.unless_held(|| self.shared.welcome(listener));
        let accepted = until_stopped(&self.shared.stop.event, &self.listeners, welcome);
        // The listeners are closed and their Unix sockets removed: clients that connect from here
        // on are refused at once.
        drop(self.listeners);
        self.shared.stop.stopping.store(true, Ordering::SeqCst);
        let drained = self.shared.drain();
        accepted.map_err(|e| std::io::Error::from(e).into()).and(drained)
    }
}

impl Stopper {
    /// Asks the server to stop. [`Server::run`] returns once it has stopped.
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
    /// Accepts a waiting client, if the handshake limit permits or another client can be closed.
    /// `Some` is how long not to poll the listeners.
    fn welcome(self: &Arc<Self>, listener: &Listener) -> Option<Duration> {
        match self.clients.make_room(Instant::now()) {
            Room::Free => self.accept(listener),
            Room::Evicted(peer) => {
                if let Some(more) = self.failure_log.evicted.pass() {
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
                if let Some(more) = self.failure_log.accept.pass() {
                    log::error!("{listener}: no client can be accepted: {error}{more}");
                }
                return Some(RECOVER);
            }
        };
        if let Err(error) = connection::start(self, socket) {
            if let Some(more) = self.failure_log.accept.pass() {
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
