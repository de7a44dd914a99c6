//! Requests pause while a snapshot of a lower device is made, so that the snapshot has each request
//! whole, and all flushed data.

use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use underseal_device::SnapshotPause;

use super::Mapping;
use crate::{Error, ErrorKind, Result};

/// The time limit for requests in flight and the flush. The program that makes the snapshot waits
/// longer.
const LIMIT: Duration = Duration::from_secs(20);

/// A volume, while it is open.
struct SnapshotGate(Weak<Mapping>);

impl Mapping {
    /// Pauses the volume's requests whenever a snapshot of a lower device is made, where the device
    /// reports snapshots.
    pub fn pause_for_snapshots(self: &Arc<Self>) {
        let pause: Arc<dyn SnapshotPause> = Arc::new(SnapshotGate(Arc::downgrade(self)));
        self.each_shared_image(|image| image.when_snapshot(pause.clone()));
    }

    /// Waits for requests in flight and flushes within `limit`; on a timeout the volume runs on.
    fn pause(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        self.control.pause(limit)?;
        let flushed = self.flush_within(limit.saturating_sub(begun.elapsed()));
        flushed.inspect_err(|_| self.control.go_on())
    }

    /// A running flush cannot be cancelled: a thread is left behind with one that takes longer.
    fn flush_within(&self, limit: Duration) -> Result<()> {
        let (tell, told) = mpsc::channel();
        let devices = self.devices.clone();
        let flush = move || {
            let _ = tell.send(devices.iter().try_for_each(|device| super::flush(&**device)));
        };
        let busy = |why: String| Error::new(ErrorKind::Busy, why);
        let thread = thread::Builder::new().name("flush".into()).spawn(flush);
        thread.map_err(|e| busy(format!("no thread to flush with: {e}")))?;
        told.recv_timeout(limit).unwrap_or_else(|_| Err(busy(format!("it was not flushed within {LIMIT:?}"))))
    }
}

impl SnapshotPause for SnapshotGate {
    fn begin(&self) -> bool {
        let Some(mapping) = self.0.upgrade() else { return false };
        match mapping.pause(LIMIT) {
            Ok(()) => log::info!("requests wait while a snapshot is made"),
            Err(e) => {
                log::warn!("no snapshot is made of this volume, whose requests do not end: {e}");
                return false;
            }
        }
        true
    }

    fn end(&self) {
        if let Some(mapping) = self.0.upgrade() {
            mapping.control.go_on();
            log::info!("requests go on after a snapshot");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use underseal_cipher::{Key, SectorSize, build};
    use underseal_device::{Channel, Device, Geometry, RamDevice};
    use underseal_volume::{Segment, Volume};

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// A device that opens no channel, and so flushes nothing, while its gate is held.
    struct GatedDevice {
        below: RamDevice,
        gate: Arc<Mutex<()>>,
    }

    impl Device for GatedDevice {
        fn geometry(&self) -> Geometry {
            self.below.geometry()
        }

        fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.below.channel(depth)
        }

        fn name(&self) -> &str {
            self.below.name()
        }
    }

    #[test]
    fn a_flush_that_does_not_end_holds_nobody_back() {
        let gate = Arc::<Mutex<()>>::default();
        let device = GatedDevice { below: RamDevice::new(SIZE), gate: gate.clone() };
        let cipher =
            build(&"cipher_null-ecb".parse().unwrap(), &Key::new(&[]).unwrap(), SectorSize::S4096).unwrap();
        let volume = Volume::new(vec![Segment::stored(0, SIZE, 0, 0, cipher)]).unwrap();
        let mapping = Mapping::new(volume, Arc::new(device)).unwrap();
        let closed = gate.lock().unwrap();
        let refused = mapping.pause(Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(!mapping.is_suspended(), "requests go on");
        drop(closed);
        mapping.pause(LIMIT).unwrap();
        assert!(mapping.is_suspended());
        mapping.control.go_on();
        assert!(!mapping.is_suspended());
    }
}
