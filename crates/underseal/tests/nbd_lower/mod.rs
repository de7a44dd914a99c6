//! Volumes on other NBD servers: the volume that clients use lies, encrypted, on an export.
//!
//! ```text
//!   backing.rs     qemu-nbd, nbdkit, another underseal as lower devices that are killed, restarted
//!   servers.rs     the same work over each of them
//!   vanishing.rs   servers that are killed under load
//!   scripted.rs    servers that a script answers for: slow, failing, with a bad sector
//!   secrecy.rs     every byte that a server hears
//!   writers.rs     programs that open one export for writing, and a bad copy of a header there
//!   refusals.rs    refused lower devices, and the error messages
//! ```

mod backing;
mod refusals;
mod scripted;
mod secrecy;
mod servers;
mod vanishing;
mod writers;
