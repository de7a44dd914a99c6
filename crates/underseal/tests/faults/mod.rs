//! What goes wrong around a server, as a whole program: it says so, to the client and in the log,
//! and goes on.
//!
//! ```text
//!   truncated.rs images shorter than their headers say
//!   shrinking.rs an image that becomes shorter while it is served
//!   full.rs      a disk with no space left
//!   foreign.rs   another program that is told of the server's losses by the kernel
//!   neighbours.rs  other programs that use the image, played at random
//!   broken.rs    a disk that fails reads, writes, flushes
//!   clients.rs   clients that are killed, that crowd, that are slow
//!   ending.rs    SIGTERM and SIGKILL under load: what was acknowledged is on the image
//!   load.rs      writers that remember what was acknowledged
//! ```

mod broken;
mod clients;
mod ending;
mod foreign;
mod full;
mod load;
mod neighbours;
mod shrinking;
mod truncated;
