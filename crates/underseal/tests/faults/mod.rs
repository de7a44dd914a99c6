//! Faults around a server, as a whole program: the server reports them, to the client and in the
//! log, and keeps running.
//!
//! ```text
//!   truncated.rs images shorter than their headers say
//!   shrinking.rs an image that becomes shorter while it is served
//!   full.rs      a disk with no space left
//!   foreign.rs   another program that consumes the kernel's report of the server's lost writes
//!   neighbours.rs  other programs that use the image, played at random
//!   broken.rs    a disk that fails reads, writes, flushes
//!   clients.rs   clients that are killed, that crowd, that are slow
//!   ending.rs    SIGTERM and SIGKILL under load: what was acknowledged is on the image
//!   lost_headers.rs  a disk that lost a header which the page cache shows
//!   stale_pages.rs  a disk with several device nodes
//!   load.rs      writers that remember what was acknowledged
//! ```

mod broken;
mod clients;
mod ending;
mod foreign;
mod full;
mod load;
mod lost_headers;
mod neighbours;
mod shrinking;
mod stale_pages;
mod truncated;
