//! A device with the timing of a disk.
//!
//! ```text
//!   channel of queue 0 ---+                      +-- flash      parallel commands, one interface
//!   channel of queue 1 ---+--> Disk (one, locked)+
//!   channel of queue 2 ---+    a timeline        +-- rotating   scheduler, head, platter
//!
//!   start: the disk gets the request, the ring a timeout
//!   the timeout: due? then the device below does the request, else another timeout
//! ```
//!
//! Only time is modelled: the data moves to and from the device below when a request's time has
//! come. The timeline advances to the clock's time with each call, so that no thread is needed.

mod channel;
mod disk;
mod flash;
mod profile;
mod rotating;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use channel::ModelChannel;
use disk::DiskModel;
pub use profile::{Flash, Medium, Profile, Rotating, Scheduler};
use underseal_device::{Channel, Device, Extent, Geometry, Result, monotonic};

/// A device with the latency and bandwidth of another kind of device.
pub struct ModelDevice {
    inner: Arc<dyn Device>,
    /// `None` for memory, which takes no time.
    shared: Option<Arc<Shared>>,
}

/// Counters of a modelled disk. Times are the model's, before [`Profile::time_scale`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// The number of accepted requests.
    pub requests: u64,
    /// The number of requests that the scheduler appended to another request.
    pub merges: u64,
    /// The number of seeks, and of waits for the platter, of a rotating disk.
    pub seeks: u64,
    /// The working time of a rotating disk, or of the flash interface.
    pub busy: Duration,
}

impl ModelDevice {
    /// Returns a device that keeps its data on `inner` and takes its timing from `profile`.
    pub fn new(inner: Arc<dyn Device>, profile: &Profile) -> Self {
        let shared = DiskModel::new(profile, inner.geometry().size).map(|disk| {
            let scale =
                if profile.time_scale.is_finite() { profile.time_scale.clamp(1e-3, 1e3) } else { 1.0 };
            Arc::new(Shared { disk: Mutex::new(disk), opened: monotonic(), scale })
        });
        Self { inner, shared }
    }

    /// The disk's counters.
    pub fn counters(&self) -> DiskCounters {
        self.shared.as_ref().map_or_else(DiskCounters::default, |shared| shared.disk().counters)
    }
}

impl Device for ModelDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refresh(&self) -> Result<u64> {
        self.inner.refresh()
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let inner = self.inner.channel(depth)?;
        Ok(match &self.shared {
            Some(shared) => Box::new(ModelChannel::new(inner, shared.clone(), depth)),
            None => inner,
        })
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }
}

/// The common disk of all channels, and its clock.
struct Shared {
    disk: Mutex<DiskModel>,
    opened: Duration,
    scale: f64,
}

impl Shared {
    fn disk(&self) -> MutexGuard<'_, DiskModel> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the model's present time, in nanoseconds.
    fn now(&self) -> u64 {
        nanos((monotonic().saturating_sub(self.opened)).div_f64(self.scale))
    }

    /// Returns the clock's time for a time of the model.
    fn deadline(&self, at: u64) -> Duration {
        // A little later, so that rounding never makes it early.
        self.opened + Duration::from_nanos(at).mul_f64(self.scale) + Duration::from_nanos(100)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time for `bytes` at `rate` bytes a second, in nanoseconds.
fn transfer(bytes: u64, rate: u64) -> u64 {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}
