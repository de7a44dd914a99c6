//! How a plain volume is reached from outside.
//!
//! ```text
//!   nbd/    Network Block Device: newstyle-fixed, TLS, Unix sockets and TCP
//! ```
//!
//! An export knows one thing of the layers below: it owns a queue, puts requests in and takes completions out.

pub mod nbd;
