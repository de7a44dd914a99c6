//! Network Block Device, served: newstyle-fixed negotiation, simple and structured replies.
//!
//! ```text
//!   Endpoint "unix:PATH" "tcp:HOST:PORT"   systemd's descriptors
//!        |  listen()                            |  activated()
//!        +---------------- Listener ------------+
//!                             |
//!                          Server        accepts, limits, stops; one thread a connection
//!                             |
//!                         Handshake      options, over any Read + Write; STARTTLS makes the transport TLS
//!                             |
//!                         Connection     { Transport, Negotiated, Peer, StopSignal }
//!                             |
//!                      ConnectionHandler serves the transmission phase
//! ```
//!
//! The protocol's text is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; "proto.md" in comments
//! means that file.

mod activation;
mod endpoint;
mod exports;
mod handshake;
mod listen;
mod logging;
mod peer;

mod server;
mod tls;
mod transmission;
pub(crate) mod transport;

pub use activation::activated;
pub use endpoint::Endpoint;
pub use exports::{ExportInfo, Exports};
pub use handshake::{Admission, Handshake, Negotiated, Refusal, Step, TlsUse};
pub use listen::{Found, Listener, listen};
pub(crate) use logging::{Printable, RateLimit};
pub use peer::Peer;
pub use server::{Connection, ConnectionHandler, Server, ServerConfig, StopSignal, Stopper};
pub use tls::{TlsConfig, TlsFiles, TlsMode};
pub use transmission::{MAX_PAYLOAD, VolumeHandler};
pub use transport::{Socket, TlsStream, Transport};
pub use underseal_nbd_protocol as protocol;
