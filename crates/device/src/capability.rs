//! The abilities that some devices have beyond reading and writing, each a trait of its own: a
//! [`Device`] returns its part where it has one. A device that lies on others names them in
//! [`Device::below`], and passes nothing on.

use std::io;
use std::sync::Arc;

use crate::{Device, UpdateLock, Zone, ZoneAction, ZoneLimits};

/// The zones of a disk that is written in order.
pub trait ZoneControl: Send + Sync {
    /// Returns the present state of up to `most` zones from `offset` on.
    ///
    /// # Errors
    /// The system's; `ENOTTY` for a device that reports no zones.
    fn report_zones(&self, offset: u64, most: usize) -> io::Result<Vec<Zone>>;

    /// The limits on zones in use at a time.
    fn zone_limits(&self) -> ZoneLimits;

    /// Applies an action to the zones of a range, and waits for it.
    ///
    /// # Errors
    /// As [`report_zones`](Self::report_zones).
    fn act_on_zones(&self, action: ZoneAction, offset: u64, len: u64) -> io::Result<()>;
}

/// The tags of a device that compares with them what it reads.
pub trait TagCheck: Send + Sync {
    /// True when reads that do not match fail ([`Error::mismatch_at`](crate::Error::mismatch_at)).
    fn verifies(&self) -> bool;

    /// Drops read bytes from memory, so that a check for damage reads the disk.
    fn forget(&self);

    /// The number of bytes that are read at the moment without a comparison, since their tags are
    /// still to be made.
    fn unverified(&self) -> u64 {
        0
    }
}

/// An image on a server, which other programs may use, and which may be lost.
pub trait SharedImage: Send + Sync {
    /// The lock of updates that other programs may make at the same time. `None` for an image that
    /// is open for reading only, or has one user at a time.
    fn update_lock(&self) -> Option<&Arc<UpdateLock>> {
        None
    }

    /// Sets a callback for the image's loss: called once, when nothing can be read or written any
    /// more until the device is opened again. The callback must not wait.
    fn when_lost(&self, act: LossHandler) {
        let _ = act;
    }

    /// Sets the pause of requests while a snapshot of the image is made.
    fn when_snapshot(&self, pause: Arc<dyn SnapshotPause>) {
        let _ = pause;
    }

    /// Releases resources that other processes wait for, before the last reference is dropped: no
    /// request is in flight, and no later one succeeds.
    fn let_go(&self) {}
}

/// A callback for the loss of a device.
pub type LossHandler = Arc<dyn Fn() + Send + Sync>;

/// Pauses requests while a snapshot is made.
pub trait SnapshotPause: Send + Sync {
    /// Stops writing and stores all written data. False: that failed, and requests continue.
    fn begin(&self) -> bool;

    /// Resumes requests after the snapshot.
    fn end(&self);
}

/// Calls with these devices and all devices below them, each of them once.
pub fn each_below(devices: &[Arc<dyn Device>], mut act: impl FnMut(&dyn Device)) {
    let mut seen = Vec::new();
    devices.iter().for_each(|device| visit(&**device, &mut seen, &mut act));
}

fn visit(device: &dyn Device, seen: &mut Vec<*const ()>, act: &mut impl FnMut(&dyn Device)) {
    let place = std::ptr::from_ref(device).cast();
    if seen.contains(&place) {
        return;
    }
    seen.push(place);
    act(device);
    device.below().into_iter().for_each(|below| visit(below, seen, act));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RamDevice, WindowDevice};

    #[test]
    fn a_device_below_several_is_visited_once() {
        let ram: Arc<dyn Device> = Arc::new(RamDevice::new(1 << 20));
        let half = |at| -> Arc<dyn Device> { Arc::new(WindowDevice::new(ram.clone(), at, 1 << 19).unwrap()) };
        let mut visited = 0;
        each_below(&[half(0), half(1 << 19)], |device| {
            visited += 1;
            assert_eq!(device.geometry().block, ram.geometry().block);
        });
        assert_eq!(visited, 3, "two windows, and the memory below both");
    }
}
