//! Sockets that clients of all exports, of the control socket and of the metrics connect to.
//!
//! ```text
//!   Endpoint "unix:PATH" "tcp:HOST:PORT"   systemd's descriptors
//!        |  listen()                            |  activated()
//!        +---------------- Listener ------------+
//!                             |  accept.rs     one client of each a turn, until an event is raised
//!                          Socket, Peer        Deadlined: within a deadline
//!                             |
//!                          Attendant           a limited number, a short-lived thread each
//! ```
//!
//! `logging` escapes text of hostile clients, and limits the log lines that a crowd of them causes.

pub(crate) mod accept;
mod activation;
mod attendant;
mod endpoint;
mod listen;
mod logging;
mod peer;
mod socket;

pub use activation::activated;
pub use attendant::Gate;
pub(crate) use attendant::{Attend, Attendant};
pub use endpoint::Endpoint;
pub use listen::{CarriedListener, Found, Listener, ListenerPlace, SocketAccess, listen};
pub(crate) use logging::{Printable, RateLimit};
pub use peer::Peer;
pub use socket::Socket;
pub(crate) use socket::{Deadlined, timespec};
