//! The control socket of an open volume: status queries and changes while the volume is served.
//!
//! ```text
//!   underseal status NAME               DIR/NAME.sock, 0600      Directory, Name: the path
//!        |                                      |
//!     Client -- a Request, a line of JSON --> ControlServer    one request a connection
//!        ^                                      |
//!        +---- a Reply, a line of JSON <---- Controlled       a Mapping; means to stop its server
//! ```
//!
//! A handover runs over the control socket, too: `old_server` is the old server's side; `line`
//! carries the messages of both servers.
//!
//! The server's side has its own threads, and limits for everything that a client can cost: a slow
//! or malformed client never delays the volume. Keys follow their request as bytes, never as text,
//! and are received into locked memory.

mod check;
mod client;
mod directory;
mod exports;
mod keys;
mod line;
mod name;
mod offer;
mod old_server;
pub mod protocol;
mod record;
mod reencryption;
mod server;
pub mod status;
mod volume;

pub use client::Client;
pub use directory::Directory;
pub use exports::ServerExports;
pub use line::{Heard, Line};
pub use name::Name;
pub use offer::{Asking, CarriedConnection, Given, Offer, Origin, PROTOCOL, Supervised};
pub use old_server::OldServer;
pub use protocol::{Checked, Rate, Reencrypt, Refusal, RefusalKind, Reply, Request};
pub use record::{ImageIdentity, RecordFile, VolumeRecord};
pub use reencryption::Reencrypter;
pub use server::ControlServer;
pub use status::Status;
pub use volume::{Controlled, Described, Known};
