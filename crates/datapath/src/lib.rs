//! A request's path from an export to the lower device and back.
//!
//! ```text
//!   export:  submit / write_in_place            next_completion
//!                     |                                ^
//!                     v                                |
//!   Queue    admit -> parts -> encrypt ----> lower --> decrypt -> ready
//!   (one thread, one Ring, one Channel,|       |          |
//!    one Arena, one table of slots)    |       +-- at once, or when the Ring says so
//!                                      +-- by the Policy: here, by Workers
//!
//!   Mapping  a Volume over its Devices, its Policy and Stats: shared by all queues
//! ```
//!
//! A request stays on the thread that received it unless the policy says otherwise. Inline, a
//! request allocates nothing and takes no mutex; its queue reserved all resources when the queue
//! opened.

#![deny(unsafe_code)]

mod control;
mod error;
mod inbox;
mod injector;
mod intervals;
mod layout;
mod locks;
mod mapping;
mod mover;
mod pace;
mod piece;
mod policy;
mod queue;
mod request;
mod shared;
mod slot;
mod splice;
mod stats;
mod sync;
mod users;
mod verified;
mod workers;
mod write_ordering;

pub use error::{Error, ErrorKind};
pub use mapping::{Mapping, MappingStatus};
pub use mover::{RangeGuard, RangeMover};
pub use pace::{Advance, Pace, Rate};
pub use policy::{Affinity, Dispatch, Policy, WriteOrder};
pub use queue::{Full, Queue, QueueOptions, SleepDecision};
pub use request::{Completion, Request};
pub use shared::{SharedBytes, SharedOwner};
pub use stats::{BacklogStats, DispatchStats, Histogram, LowerWait, MISMATCHES, RequestCount, Stages, Stats};
pub use underseal_device::{Buffer, Zone, ZoneAction, ZoneLimits, Zones};
pub use users::ServedVolume;
pub use workers::may_run_first;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
