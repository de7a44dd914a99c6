//! Devices for tests and experiments. No volume is served from these devices.
//!
//! ```text
//!   devices on other devices, whose channels they hold:
//!     model/     takes the time of a rotating disk, an SSD, NVMe: timeouts in the ring
//!     zoned      fails writes out of sequence
//!     fault/     fails by rules; forgets unflushed writes when its power is cut
//!     recorder   writes down requests and their order
//!     tagged     keeps a tuple beside each block
//! ```

#![forbid(unsafe_code)]

mod fault;
mod model;
mod recorder;
mod tagged;
mod zoned;

pub use fault::{Fault, FaultControl, FaultDevice, Rule};
pub use model::{DiskCounters, Flash, Medium, ModelDevice, Profile, Rotating, Scheduler};
pub use recorder::{Record, RecorderDevice};
pub use tagged::TaggedDevice;
pub use zoned::ZonedDevice;
