//! A volume's control socket: what the volume does, and what it is told to do while it is open.
//!
//! ```text
//!   underseal status NAME                        DIR/NAME.sock, 0600         Directory, Name: where it is
//!        |                                            |
//!     Client --- a Request, a line of JSON -----> ControlServer   whose process is it? one request a connection
//!        ^                                            |
//!        +------ a Reply, a line of JSON <------- Controlled  a Mapping, and what stops its server
//! ```
//!
//! A volume goes to another process over its control socket, too: `giver` is the side that gives,
//! `line` what both say.
//!
//! The server's side has threads of its own and bounds for everything that a client can cost: a
//! client that is slow or says nonsense never delays the volume. Keys follow their request as
//! bytes, never as text, and are received into locked memory.

mod check;
mod client;
mod directory;
mod giver;
mod keys;
mod line;
mod name;
mod offer;
pub mod protocol;
mod reencryption;
mod server;
pub mod status;
mod volume;
mod ways;

pub use client::Client;
pub use directory::Directory;
pub use giver::Giver;
pub use line::{Heard, Line};
pub use name::Name;
pub use offer::{Asking, CarriedConnection, Given, Offer, Origin, PROTOCOL, Supervised};
pub use protocol::{Checked, Rate, Reencrypt, Refusal, RefusalKind, Reply, Request};
pub use reencryption::Reencrypter;
pub use server::ControlServer;
pub use status::Status;
pub use volume::{Controlled, Described, Known};
pub use ways::Ways;
