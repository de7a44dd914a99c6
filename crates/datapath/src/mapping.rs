//! A volume over its lower devices.

mod guards;
mod losses;
mod shape;
mod shared_images;
mod snapshots;
mod zones;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_device::{Device, Extent, Geometry, each_below};
use underseal_volume::{Guards, Segment, SegmentKind, Volume};

use losses::ServerLosses;
use shape::RequestLimits;

use crate::control::{VolumeControl, VolumeSettings, no_key};
use crate::layout::{self, Layout};
use crate::locks::RangeLock;
use crate::mover::LockWaiter;
use crate::workers::Workers;
use crate::{Error, ErrorKind, LowerWait, Policy, Result, Stats};

/// The time limit for queues to report their oldest lower request.
const LOOK: Duration = Duration::from_millis(100);

/// An open volume: its segments, the devices they lie on, and settings that can change while it
/// runs. All its queues share it.
pub struct Mapping {
    control: VolumeControl,
    devices: Vec<Arc<dyn Device>>,
    workers: Workers,
    locks: RangeLock<LockWaiter>,
    shape: RequestLimits,
    guards: Guards,
    /// The volume's format fixes its size.
    fixed_size: bool,
    busy_poll: Duration,
    losses: ServerLosses,
}

/// About the cost of waking a thread whose processor sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// The state of a range of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingStatus {
    /// The length in bytes for which the status holds.
    pub len: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// The range reads as zeros. (A hole under a cipher reads as noise.)
    pub zero: bool,
}

impl Mapping {
    /// Puts a volume over a device.
    ///
    /// # Errors
    /// As [`Mapping::over`].
    pub fn new(volume: Volume, device: Arc<dyn Device>) -> Result<Self> {
        Self::over(volume, vec![device])
    }

    /// Puts a volume over its devices, in the order of the segments' numbers. A device may occur
    /// twice.
    ///
    /// # Errors
    /// `Layout` when a segment lies beyond its device's end, not on its blocks, or on a device that
    /// is not in the list; or when a device wants memory aligned to more than a sector.
    pub fn over(volume: Volume, devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        layout::check(&volume, |number| Some(&**devices.get(number)?))?;
        layout::tell_needs(&volume, &devices);
        let shape = RequestLimits::of(&volume, &devices);
        layout::check_memory(&devices, shape.sector)?;
        let layout = shape.layout_of(&volume);
        Ok(Self {
            control: VolumeControl::new(volume, layout, Policy::INLINE),
            workers: Workers::new(devices.clone()),
            devices,
            locks: RangeLock::new(shape.sector),
            shape,
            guards: Guards::default(),
            fixed_size: false,
            busy_poll: BUSY_POLL,
            losses: ServerLosses::default(),
        })
    }

    /// Takes requests for sectors of this size, though all present ones may be smaller: the volume
    /// will get larger ones.
    #[must_use]
    pub fn with_sectors(mut self, sectors: SectorSize) -> Self {
        let sector = u32::try_from(sectors.bytes()).unwrap_or(u32::MAX);
        if sector > self.shape.sector {
            let RequestLimits { block, preferred_block, .. } = self.shape;
            let (block, preferred_block) = (block.max(sector), preferred_block.max(sector));
            self.shape = RequestLimits { sector, block, least: block, preferred_block, ..self.shape };
            self.locks = RangeLock::new(sector);
        }
        self
    }

    /// Accepts requests in blocks smaller than a sector, in bytes: a power of two from 512. The
    /// queues then read, change and write the sectors that a write covers in part.
    ///
    /// # Errors
    /// `Layout` for another number, or when a device cannot take memory that is aligned to it.
    pub fn with_block(mut self, block: u32) -> Result<Self> {
        let aligned = self.geometries().all(|geometry| geometry.memory_alignment <= block);
        if !block.is_power_of_two() || block < 512 || !aligned {
            let context =
                format!("blocks of {block} bytes: powers of two from 512 that the devices can take");
            return Err(Error::new(ErrorKind::Layout, context));
        }
        self.shape.block = self.shape.sector.min(block);
        self.shape.least = self.shape.least.min(self.shape.block);
        self.control.set_modifies(self.modifies() && !self.read_only());
        Ok(self)
    }

    /// Takes requests for any bytes. [`Mapping::block`] is unchanged.
    #[must_use]
    pub fn with_bytes(mut self) -> Self {
        self.shape.least = 1;
        self.control.set_modifies(self.modifies() && !self.read_only());
        self
    }

    /// Lets the threads of the queues look for requests before they sleep, where that pays: for
    /// `limit` at most; with zero never.
    #[must_use]
    pub fn with_busy_poll(mut self, limit: Duration) -> Self {
        self.busy_poll = limit;
        self
    }

    /// See [`with_busy_poll`](Mapping::with_busy_poll).
    pub fn busy_poll(&self) -> Duration {
        self.busy_poll
    }

    /// The current size in bytes.
    pub fn size(&self) -> u64 {
        self.control.size()
    }

    /// The unit of requests' offsets and lengths: the sector size or the device's block, or the
    /// smaller one of [`Mapping::with_block`].
    pub fn block(&self) -> u32 {
        self.shape.block
    }

    /// The unit of offsets and lengths that cost nothing extra, in bytes.
    pub fn preferred_block(&self) -> u32 {
        self.shape.preferred_block
    }

    /// True when the volume takes no writes.
    pub fn read_only(&self) -> bool {
        self.shape.read_only
    }

    /// True when all devices at the bottom were opened for reading only. A volume that takes no
    /// writes for another reason may lie on devices that were opened for writing.
    pub fn reads_devices_only(&self) -> bool {
        let mut read_only = true;
        each_below(&self.devices, |device| {
            read_only &= !device.below().is_empty() || device.geometry().read_only;
        });
        read_only
    }

    /// True when discards reach the devices.
    pub fn discards(&self) -> bool {
        self.shape.discards
    }

    /// True when zeros in the lower device read as zeros everywhere, so zeroing can be faster than
    /// writing.
    pub fn is_null(&self) -> bool {
        self.control.settings().layout.is_null
    }

    /// How requests are dispatched.
    pub fn policy(&self) -> Policy {
        self.control.settings().policy
    }

    /// Changes the policy for new requests. Those in flight end as they began.
    ///
    /// # Errors
    /// `Policy` when the policy would reorder the writes of a zoned device.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        if self.shape.zoned {
            policy.fits_zones()?;
        }
        self.workers.set_high_priority(policy.high_priority);
        self.control.set_policy(policy);
        Ok(())
    }

    /// Holds new requests back, waits for those in flight, and flushes the devices. A thread that
    /// has a queue must not call this: every queue's thread has to see the change.
    ///
    /// # Errors
    /// `Busy` when requests do not end within `limit`, and errors of the flush: the volume runs on
    /// then. Later flushes report that failure too.
    pub fn suspend(&self, limit: Duration) -> Result<()> {
        let was_running = self.control.suspend(limit)?;
        if self.read_only() {
            return Ok(());
        }
        let flushed = self.flush();
        if flushed.is_err() && was_running {
            self.control.resume()?;
        }
        flushed
    }

    /// Flushes earlier writes without a queue, also where no queue can be opened any more.
    ///
    /// # Errors
    /// Those of the lower devices.
    pub fn flush(&self) -> Result<()> {
        self.devices.iter().try_for_each(|device| flush(&**device))
    }

    /// Holds new requests back and waits for those in flight, without a flush.
    ///
    /// # Errors
    /// `Busy` when requests do not end within `limit`.
    pub fn hold(&self, limit: Duration) -> Result<()> {
        self.control.suspend(limit).map(drop)
    }

    /// Wakes every thread that sleeps in a queue, so that its export looks for orders. A thread
    /// that is about to sleep may still do so.
    pub fn rouse(&self) {
        self.control.rouse();
    }

    /// Resumes the requests.
    ///
    /// # Errors
    /// `NoKey` after the key was wiped.
    pub fn resume(&self) -> Result<()> {
        self.control.resume()
    }

    /// Resumes the requests even when the key is wiped: those that need the key fail. For a volume
    /// that is being closed, so that no request waits for ever.
    pub fn release(&self) {
        self.control.release();
    }

    /// True while the volume is [suspended](Mapping::suspend), or about to be.
    pub fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    /// True while requests are held back, also for a snapshot.
    pub fn is_suspended(&self) -> bool {
        self.control.settings().suspended
    }

    /// The volume, unless its key is wiped.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.control.settings().volume
    }

    /// Replaces the key of the volume.
    ///
    /// # Errors
    /// `NotSuspended`; `Layout` when the new volume's segments lie elsewhere or have other sectors;
    /// `Busy` while a [`RangeMover`](crate::RangeMover) exists, or when a queue's thread does not
    /// drop the old key in time.
    pub fn replace_volume(&self, volume: Volume) -> Result<()> {
        let volume = Arc::new(volume);
        let check =
            || self.check(&volume, &self.control.settings().layout, &(0..0)).map(|_| Some(volume.clone()));
        self.control.replace(check)
    }

    /// Resizes the last segment of the volume, to a given size or to all of its device, and returns
    /// the volume's new size. The device is [asked](Device::refresh) for its size unless it is
    /// known to be large enough.
    ///
    /// The volume may be running. A growing volume has its new size at once. A shrinking one
    /// refuses requests beyond its new end at once, and waits up to `limit` for earlier ones; a
    /// thread that has a queue must not shrink a volume.
    ///
    /// # Errors
    /// `Layout` when the volume does not fit on the device, is no whole number of sectors, or its
    /// last segment would be empty; `Lower` when the device cannot be asked; `NoKey` while the key
    /// is wiped; `Busy` while a [`RangeMover`](crate::RangeMover) exists, or when requests do not
    /// end within `limit`: the size is unchanged then.
    pub fn resize(&self, size: Option<u64>, limit: Duration) -> Result<u64> {
        if self.fixed_size {
            return Err(Error::new(ErrorKind::Layout, "the volume's format fixes its size"));
        }
        let is_known =
            self.last(|last, device| size.is_some_and(|size| size <= layout::end_on(last, device)))?;
        if let Some(false) = is_known {
            self.refresh()?;
        }
        let resized = |now: &Volume| {
            let bad = |why: String| Error::new(ErrorKind::Layout, why);
            let last = now.segments().last().and_then(|last| Some((last, last.as_stored()?.device)));
            let size = match (size, last) {
                (Some(size), _) => size,
                (None, Some((last, device))) => layout::end_on(last, &*self.devices[device]),
                (None, None) => return Err(bad("its last segment lies on no device that has a size".into())),
            };
            let volume = now.resized(size).map_err(|e| bad(e.to_string()))?;
            layout::check(&volume, |number| Some(&**self.devices.get(number)?))?;
            let layout = self.shape.layout_of(&volume);
            Ok((volume, layout))
        };
        let size = self.control.resize(resized, limit)?;
        self.volume().iter().for_each(|volume| layout::tell_needs(volume, &self.devices));
        Ok(size)
    }

    /// Asks the device of the last segment for its current size.
    fn refresh(&self) -> Result<()> {
        // The reference to the volume is dropped first: a thread that wipes the key waits until all
        // references are gone.
        let number = self.last(|last, _| last.as_stored().map(|stored| stored.device))?.flatten();
        let Some(device) = number.and_then(|number| self.devices.get(number)) else { return Ok(()) };
        device.refresh().map(drop).map_err(|e| Error::lower(device.name(), e))
    }

    /// Calls `of` with the last segment and its device; `None` where it has no device.
    fn last<T>(&self, of: impl FnOnce(&Segment, &dyn Device) -> T) -> Result<Option<T>> {
        let volume = self.volume().ok_or_else(no_key)?;
        let last = volume.segments().last().and_then(|last| Some((last, last.as_stored()?.device)));
        Ok(last.map(|(last, device)| of(last, &*self.devices[device])))
    }

    /// Replaces the volume; the new one may lie elsewhere within a range that no request uses.
    /// Returns `NoKey`, or `Layout` when it does not fit on the devices, has another size, or
    /// differs outside of the range.
    pub(crate) fn relay(&self, volume: Volume, within: &Range<u64>) -> Result<()> {
        let volume = Arc::new(volume);
        self.control.relay(volume.clone(), |layout, now| {
            if !layout::share_keys(now, &volume, within) {
                let context =
                    "the volume has other keys outside of the range: it was made from a replaced volume";
                return Err(Error::new(ErrorKind::Layout, context));
            }
            self.check(&volume, layout, within)
        })
    }

    /// Checks that a volume can replace one with the layout `now`, and returns its layout.
    fn check(&self, volume: &Volume, now: &Layout, outside: &Range<u64>) -> Result<Layout> {
        layout::check(volume, |number| Some(&**self.devices.get(number)?))?;
        let (shape, layout) = (RequestLimits::of(volume, &self.devices), self.shape.layout_of(volume));
        // Requests are made for the largest sectors, so smaller ones are allowed.
        let same = shape.sector <= self.shape.sector && shape.discards == self.shape.discards;
        if !same || layout.size != now.size || !now.agrees(&layout, outside) {
            return Err(Error::new(ErrorKind::Layout, "the volume lies elsewhere, or has other sectors"));
        }
        Ok(layout)
    }

    /// Wipes the key. The volume stays suspended until it has a key again.
    ///
    /// No queue has the key afterwards.
    ///
    /// # Errors
    /// `NotSuspended`; `Busy` while a [`RangeMover`](crate::RangeMover) exists, or when a queue's
    /// thread does not drop the key in time.
    pub fn wipe_key(&self) -> Result<()> {
        self.control.replace(|| Ok(None))
    }

    /// Counters since the volume was opened, and its current load.
    pub fn stats(&self) -> Stats {
        self.control.stats()
    }

    /// Returns the device that requests wait for, if it has had one for `long` at least. Asks the
    /// queues with requests in flight, which takes a moment; a queue whose thread does not answer
    /// is left out.
    pub fn waiting(&self, long: Duration) -> Option<LowerWait> {
        let oldest = self.control.oldest_below(LOOK)?;
        let lasts = oldest.since.elapsed();
        (lasts >= long).then(|| LowerWait { on: self.devices[oldest.device].name().into(), lasts })
    }

    /// Returns the state of the volume at `offset`, for at most `len` bytes; the answer covers at
    /// least one byte. `None` beyond the end.
    pub fn status(&self, offset: u64, len: u64) -> Option<MappingStatus> {
        let left = self.size().checked_sub(offset).filter(|left| *left > 0)?;
        let data = |len| Some(MappingStatus { len, hole: false, zero: false });
        let VolumeSettings { volume: Some(volume), .. } = self.control.settings() else {
            return data(len.min(left).max(1));
        };
        let segment = &volume.segments()[volume.segment_index(offset)?];
        let len = len.min(segment.end() - offset).max(1);
        let (extent, is_null) = match (&segment.kind, segment.lower(offset)) {
            (SegmentKind::Stored(stored), Some((device, lower))) => {
                (self.devices[device].extent(lower, len), stored.cipher.is_null())
            }
            (SegmentKind::Zero, _) => (Extent { len, hole: true }, true),
            // A read gives more information here than any status.
            _ => (Extent { len, hole: false }, false),
        };
        // Whole blocks only: a client reads and writes nothing smaller. A part of a block is data.
        let block = u64::from(self.block());
        match extent.len / block * block {
            0 => data(block.min(len)),
            len => Some(MappingStatus { len, hole: extent.hole, zero: extent.hole && is_null }),
        }
    }

    pub(crate) fn control(&self) -> &VolumeControl {
        &self.control
    }

    pub(crate) fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The range lock. It separates requests for the same sector where they would damage it:
    /// sectors that are read, changed and written; sectors that cannot be decrypted from parts of
    /// two ciphertexts; sectors of a range mover.
    pub(crate) fn locks(&self) -> &RangeLock<LockWaiter> {
        &self.locks
    }

    /// The unit of the lower devices' reads and writes.
    pub fn sector(&self) -> u32 {
        self.shape.sector
    }

    /// True when a device has zones that are written in sequence.
    pub fn is_zoned(&self) -> bool {
        self.shape.zoned
    }

    /// The unit that offsets and lengths must have.
    pub(crate) fn least(&self) -> u32 {
        self.shape.least
    }

    /// True when any bytes can be read and written.
    pub fn takes_bytes(&self) -> bool {
        self.shape.least == 1
    }

    /// True when sectors are written in part.
    pub(crate) fn modifies(&self) -> bool {
        self.shape.least < self.shape.sector
    }

    /// True when the devices can write from memory at this offset in a page.
    pub(crate) fn takes_memory_at(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.shape.memory_alignment.into())
    }

    /// Bytes of tuples for `len` bytes of whole sectors anywhere in the volume; 0 without tags.
    pub(crate) fn tags_for(&self, len: u64) -> usize {
        let (tags, sector) = self.shape.tags;
        usize::try_from(len.saturating_mul(tags).div_ceil(sector)).unwrap_or(usize::MAX)
    }

    /// True when the volume reads and writes tags with its sectors.
    pub fn has_tags(&self) -> bool {
        self.shape.tags.0 > 0
    }

    fn geometries(&self) -> impl Iterator<Item = Geometry> {
        self.devices.iter().map(|device| device.geometry())
    }
}

/// Flushes a device past all queues.
fn flush(device: &dyn Device) -> Result<()> {
    underseal_device::flush(device).map_err(|e| Error::lower(device.name(), e))
}
