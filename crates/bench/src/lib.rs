//! What the code costs, beside what the processor could do and what others reach.
//!
//! ```text
//!   cipher()                    rows: our CPU paths and the peers, each group beside its limits
//!     +-- measure               interleaved medians: every subject in every round
//!     +-- limits                bare AES rounds; memory that is only touched
//!     +-- peers                 AWS-LC and OpenSSL, sector by sector (build features)
//!   nbd()                       rows: our server, qemu-nbd and nbdkit under the same client
//! ```

mod cipher;
mod limits;
mod machine;
mod measure;
mod nbd;
mod peers;
mod range;
mod report;

pub use cipher::cipher;
pub use machine::Machine;
pub use measure::{Call, Effort, Sample, Subject, rates};
pub use nbd::{NbdError, NbdOptions, NbdReport, NbdRow, Seen, Workload, nbd, serve_memory};
pub use range::Range;
pub use report::{Report, Row, Scaling};
