//! What the code costs, beside what the processor could do and what others reach.
//!
//! ```text
//!   cipher()                    rows: our CPU paths and the peers, each group beside its limits
//!     +-- measure               interleaved medians: every subject in every round
//!     +-- limits                bare AES rounds; memory that is only touched
//!     +-- peers                 AWS-LC and OpenSSL, sector by sector (build features)
//! ```

mod cipher;
mod limits;
mod machine;
mod measure;
mod peers;
mod report;

pub use cipher::cipher;
pub use machine::Machine;
pub use measure::{Effort, Sample};
pub use report::{Report, Row, Scaling};
