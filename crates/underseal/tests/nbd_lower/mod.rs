//! Volumes on other NBD servers: what is served to a client lies, encrypted, on an export.
//!
//! ```text
//!   backing.rs     qemu-nbd, nbdkit and another underseal as lower devices; they can be killed and started again
//!   servers.rs     the same work over each of them
//!   vanishing.rs   servers that are killed under load
//!   scripted.rs    servers that a script answers for: slow, failing, with a bad sector
//!   secrecy.rs     every byte that a server hears
//!   refusals.rs    what is refused, and how that is said
//! ```

mod backing;
mod refusals;
mod scripted;
mod secrecy;
mod servers;
mod vanishing;
