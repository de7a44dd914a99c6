//! The NBD server from outside: raw bytes, good and bad, and the field's own tools.
//!
//! ```text
//!   client.rs      a client that sends exactly the given bytes
//!   fixture.rs     a server with a disk in memory behind it, and certificates
//!   negotiation.rs options, right and wrong, without a socket
//!   limits.rs      time limits, numbers of clients, panics
//!   stop.rs        ending
//!   tls.rs         STARTTLS
//!   activation.rs  sockets from systemd
//!   tools.rs       nbdinfo, nbdcopy, qemu-img
//!   talker.rs      a volume in a file, and a client that reads and writes it
//!   transmission.rs requests and replies over a real volume
//! ```

mod activation;
mod client;
mod fixture;
mod left;
mod limits;
mod negotiation;
mod stop;
mod talker;
mod tls;
mod tools;
mod transmission;
