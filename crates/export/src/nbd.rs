//! The NBD export: newstyle-fixed negotiation, simple and structured replies.
//!
//! ```text
//!   net::Listener --> Server      accepts, limits, stops; one thread a connection
//!                        |
//!                    Handshake    options, over any Read + Write; STARTTLS makes the transport TLS
//!                        |
//!                    Connection   { Transport, Negotiated, Peer, StopSignal }
//!                        |
//!                 ConnectionHandler serves the transmission phase
//! ```
//!
//! The protocol's text is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; "proto.md"
//! in comments means that file.

mod crl;
mod exports;
mod handshake;
mod server;
mod tls;
mod transmission;
mod transport;

pub use exports::{ExportInfo, Exports};
pub use handshake::{Admission, Handshake, Negotiated, Refusal, Step, TlsUse};
pub use server::{
    Adopted, Begun, Bytes, Carried, Connection, ConnectionHandler, Holder, Passage, Server, ServerConfig,
    StopSignal, Stopper,
};
pub use tls::{TlsConfig, TlsFiles, TlsMode};
pub use transmission::{MAX_PAYLOAD, VolumeHandler};
pub use transport::{TlsStream, Transport};
pub use underseal_nbd_protocol as protocol;
