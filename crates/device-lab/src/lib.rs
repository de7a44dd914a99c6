//! Devices for tests and experiments. Nothing that a volume is served with is here.
//!
//! ```text
//!   devices on other devices, whose channels they hold:
//!     stripe     RAID-0 over several: a request in pieces
//!     model/     takes the time of a rotating disk, an SSD, NVMe: timeouts in the ring
//!     zoned      fails what is not written in sequence
//!     fault/     fails as rules say; forgets what was not flushed when its power is cut
//!     recorder   writes down requests and their order
//!     tagged     keeps a tuple beside each block
//! ```

#![forbid(unsafe_code)]

mod fault;
mod model;
mod recorder;
mod stripe;
mod tagged;
mod zoned;

pub use fault::{Fault, FaultControl, FaultDevice, Rule};
pub use model::{DiskCounters, Flash, Medium, ModelDevice, Profile, Rotating, Scheduler};
pub use recorder::{Record, RecorderDevice};
pub use stripe::StripeDevice;
pub use tagged::TaggedDevice;
pub use zoned::ZonedDevice;
