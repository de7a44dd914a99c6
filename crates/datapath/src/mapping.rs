//! A volume over its lower devices.

mod guards;
mod shape;
mod snapshots;
mod zones;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_device::{Blocking, Device, Extent, Geometry, LossHandler};
use underseal_volume::{Segment, SegmentKind, Volume};

use guards::Guards;
use shape::RequestLimits;

use crate::control::{VolumeControl, VolumeSettings, no_key};
use crate::engine::Accelerator;
use crate::layout::{self, Layout};
use crate::locks::RangeLock;
use crate::mover::LockWaiter;
use crate::workers::Workers;
use crate::{Dispatch, Error, ErrorKind, LowerWait, Policy, Result, Stats};

/// How long queues may take to come and look what they wait for.
const LOOK: Duration = Duration::from_millis(100);

/// A volume that is open: its segments, the devices they lie on, and what can be changed while it runs. Shared by all its
/// queues.
pub struct Mapping {
    control: VolumeControl,
    devices: Vec<Arc<dyn Device>>,
    workers: Workers,
    engine: Option<Arc<dyn Accelerator>>,
    locks: RangeLock<LockWaiter>,
    shape: RequestLimits,
    guards: Guards,
    /// The volume's format fixes its size.
    fixed_size: bool,
}

/// What a range of the volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingStatus {
    /// The length in bytes for which it holds.
    pub len: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// It reads as zeros. (A hole under a cipher reads as noise.)
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

    /// Puts a volume over its devices, in the order of the segments' numbers. One may be there twice.
    ///
    /// # Errors
    /// `Layout` when a segment lies beyond its device's end, not on its blocks, or on a device that is not there; or when a device
    /// wants memory aligned to more than a sector.
    pub fn over(volume: Volume, devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        layout::check(&volume, |number| Some(&**devices.get(number)?))?;
        let shape = RequestLimits::of(&volume, &devices);
        // Requests are divided at any sector, and their memory with them.
        if let Some(device) = devices.iter().find(|device| device.geometry().memory_alignment > shape.sector)
        {
            let context = format!(
                "{} takes memory that is aligned to {} bytes, and the volume has sectors of {}",
                device.name(),
                device.geometry().memory_alignment,
                shape.sector
            );
            return Err(Error::new(ErrorKind::Layout, context));
        }
        let layout = shape.layout_of(&volume);
        Ok(Self {
            control: VolumeControl::new(volume, layout, Policy::INLINE),
            workers: Workers::new(devices.clone()),
            devices,
            engine: None,
            locks: RangeLock::new(shape.sector),
            shape,
            guards: Guards::default(),
            fixed_size: false,
        })
    }

    /// Takes requests for sectors of this size, though all that there are may be smaller: the volume is going to have such.
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

    /// Promises requests of smaller blocks than its sectors, in bytes: a power of two from 512. The queues then read,
    /// change and write the sectors that a write covers in part.
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

    /// Takes requests for any bytes. Those who ask what its [block](Mapping::block) is are told nothing else than before.
    #[must_use]
    pub fn with_bytes(mut self) -> Self {
        self.shape.least = 1;
        self.control.set_modifies(self.modifies() && !self.read_only());
        self
    }

    /// Gives the volume an accelerator, for policies that name the engine.
    #[must_use]
    pub fn with_accelerator(mut self, engine: Arc<dyn Accelerator>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Its size in bytes, as it is now.
    pub fn size(&self) -> u64 {
        self.control.size()
    }

    /// What offsets and lengths of requests are to be multiples of: the sector size or the device's block, or what was
    /// [promised](Mapping::with_block).
    pub fn block(&self) -> u32 {
        self.shape.block
    }

    /// Offsets and lengths that cost nothing extra, in bytes.
    pub fn preferred_block(&self) -> u32 {
        self.shape.preferred_block
    }

    /// True when nothing may be written.
    pub fn read_only(&self) -> bool {
        self.shape.read_only
    }

    /// True when discards reach the devices.
    pub fn discards(&self) -> bool {
        self.shape.discards
    }

    /// True when zeros below are zeros above everywhere, so zeroing can be faster than writing.
    pub fn is_null(&self) -> bool {
        self.control.settings().layout.is_null
    }

    /// Has the devices [let go](Device::let_go) of what others wait for, when all requests are over.
    pub fn let_go(&self) {
        self.devices.iter().for_each(|device| device.let_go());
    }

    /// Has something done when a device is [lost](Device::when_lost).
    pub fn when_lost(&self, act: LossHandler) {
        self.devices.iter().for_each(|device| device.when_lost(act.clone()));
    }

    /// How requests are dispatched.
    pub fn policy(&self) -> Policy {
        self.control.settings().policy
    }

    /// Dispatches the requests that come from now on in another way. Those in flight go on as they began.
    ///
    /// # Errors
    /// `Policy` when it would reorder the writes of a zoned device, or names an engine that the volume does not have.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        if self.shape.zoned {
            policy.fits_zones()?;
        }
        if self.engine.is_none() && [policy.read, policy.write].contains(&Dispatch::Engine) {
            let context = format!("{policy}: the volume has no accelerator");
            return Err(Error::new(ErrorKind::Policy, context));
        }
        self.workers.set_high_priority(policy.high_priority);
        self.control.set_policy(policy);
        Ok(())
    }

    /// Holds new requests back, waits for those in flight, and flushes the devices. Not for a thread that has a queue:
    /// every queue's thread has to see it.
    ///
    /// # Errors
    /// `Busy` when they do not end within `limit`, and the flush's: the volume runs on then. Who flushes later is told of that
    /// failure too.
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

    /// Flushes past all queues what was written before, also where no queue can be opened any more.
    ///
    /// # Errors
    /// Those of the lower devices.
    pub fn flush(&self) -> Result<()> {
        self.devices.iter().try_for_each(|device| flush(&**device))
    }

    /// Wakes every thread that sleeps in a queue, so that its door looks for orders. One that was about to sleep may do so.
    pub fn rouse(&self) {
        self.control.rouse();
    }

    /// Lets the requests go on.
    ///
    /// # Errors
    /// `NoKey` after the key was wiped.
    pub fn resume(&self) -> Result<()> {
        self.control.resume()
    }

    /// Lets the requests go on even when the key is wiped: those that need it fail. For a volume that is being closed, so
    /// that nobody waits for ever.
    pub fn release(&self) {
        self.control.release();
    }

    /// True while it is [suspended](Mapping::suspend), or about to be.
    pub fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    /// True while requests are held back, also for the moment of a snapshot.
    pub fn is_suspended(&self) -> bool {
        self.control.settings().suspended
    }

    /// The volume, unless its key is wiped.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.control.settings().volume
    }

    /// Puts the same volume under another key.
    ///
    /// # Errors
    /// `NotSuspended`; `Layout` when its segments lie elsewhere or have other sectors; `Busy` while there is a
    /// [mover](crate::RangeMover), or when the thread of a queue does not come to see it.
    pub fn replace_volume(&self, volume: Volume) -> Result<()> {
        let volume = Arc::new(volume);
        let check =
            || self.check(&volume, &self.control.settings().layout, &(0..0)).map(|_| Some(volume.clone()));
        self.control.replace(check)
    }

    /// Gives the volume another size, or all that the device has now that its last segment lies on: nothing else of it
    /// changes. The device is [asked](Device::refresh) unless it is known to be large enough. The size that the volume has then.
    ///
    /// It may run. A volume that grows has its new size at once, and nobody waits. One that shrinks refuses what lies beyond
    /// its new end from now on, and waits for what was begun before, for so long; then nothing is there any more. That is
    /// not for a thread that has a queue.
    ///
    /// # Errors
    /// `Layout` when it does not fit on the device, is no whole number of sectors, or nothing would be left of the last segment;
    /// `Lower` when the device cannot be asked; `NoKey` while the key is wiped; `Busy` while there is a [mover](crate::RangeMover), or
    /// when requests do not end within `limit`: the volume keeps its size then.
    pub fn resize(&self, size: Option<u64>, limit: Duration) -> Result<u64> {
        if self.fixed_size {
            return Err(Error::new(ErrorKind::Layout, "the volume's format fixes its size"));
        }
        let is_known = self.last(|last, device| size.is_some_and(|size| size <= end_on(last, device)))?;
        if let Some(false) = is_known {
            self.refresh()?;
        }
        let resized = |now: &Volume| {
            let bad = |why: String| Error::new(ErrorKind::Layout, why);
            let last = now.segments().last().and_then(|last| Some((last, last.as_stored()?.device)));
            let size = match (size, last) {
                (Some(size), _) => size,
                (None, Some((last, device))) => end_on(last, &*self.devices[device]),
                (None, None) => return Err(bad("its last segment lies on no device that has a size".into())),
            };
            let volume = now.resized(size).map_err(|e| bad(e.to_string()))?;
            layout::check(&volume, |number| Some(&**self.devices.get(number)?))?;
            let layout = self.shape.layout_of(&volume);
            Ok((volume, layout))
        };
        self.control.resize(resized, limit)
    }

    /// Asks the device that the last segment lies on how large it is now.
    fn refresh(&self) -> Result<()> {
        // The volume is let go before: whoever wipes the key waits for all who have it.
        let number = self.last(|last, _| last.as_stored().map(|stored| stored.device))?.flatten();
        let Some(device) = number.and_then(|number| self.devices.get(number)) else { return Ok(()) };
        device.refresh().map(drop).map_err(|e| Error::lower(device.name(), e))
    }

    /// Something of the last segment, and of the device that it lies on; none where it lies on none.
    fn last<T>(&self, of: impl FnOnce(&Segment, &dyn Device) -> T) -> Result<Option<T>> {
        let volume = self.volume().ok_or_else(no_key)?;
        let last = volume.segments().last().and_then(|last| Some((last, last.as_stored()?.device)));
        Ok(last.map(|(last, device)| of(last, &*self.devices[device])))
    }

    /// Puts another volume in the place of this one, which may lie elsewhere within a range that nobody uses.
    ///
    /// # Errors
    /// `NoKey`; `Layout` when it does not fit on the devices, has another size, or differs elsewhere.
    pub(crate) fn relay(&self, volume: Volume, within: &Range<u64>) -> Result<()> {
        let volume = Arc::new(volume);
        self.control.relay(volume.clone(), |layout, now| {
            if !layout::share_keys(now, &volume, within) {
                let context =
                    "the volume has other keys elsewhere: it was made of one that is not there any more";
                return Err(Error::new(ErrorKind::Layout, context));
            }
            self.check(&volume, layout, within)
        })
    }

    /// Whether a volume can take the place of one that lies like this. Its layout.
    fn check(&self, volume: &Volume, now: &Layout, outside: &Range<u64>) -> Result<Layout> {
        layout::check(volume, |number| Some(&**self.devices.get(number)?))?;
        let (shape, layout) = (RequestLimits::of(volume, &self.devices), self.shape.layout_of(volume));
        // Requests are made for the largest sectors: smaller ones do.
        let same = shape.sector <= self.shape.sector && shape.discards == self.shape.discards;
        if !same || layout.size != now.size || !now.agrees(&layout, outside) {
            return Err(Error::new(ErrorKind::Layout, "the volume lies elsewhere, or has other sectors"));
        }
        Ok(layout)
    }

    /// Forgets the key. The volume stays suspended until it has one again.
    ///
    /// No queue has it afterwards. A job that an engine has never given back still does.
    ///
    /// # Errors
    /// `NotSuspended`; `Busy` while there is a [mover](crate::RangeMover), or when the thread of a queue does not come to see it.
    pub fn wipe_key(&self) -> Result<()> {
        self.control.replace(|| Ok(None))
    }

    /// What the volume has done since it was opened, and what it does now.
    pub fn stats(&self) -> Stats {
        self.control.stats()
    }

    /// The device that requests wait for, if it has had one of them for `long` at least. Asks the queues that have some in flight, which
    /// takes a moment; one whose thread does not come to answer is left out.
    pub fn waiting(&self, long: Duration) -> Option<LowerWait> {
        let oldest = self.control.oldest_below(LOOK)?;
        let lasts = oldest.since.elapsed();
        (lasts >= long).then(|| LowerWait { on: self.devices[oldest.device].name().into(), lasts })
    }

    /// What the volume is made of at `offset`, for at most `len` bytes; the answer covers at least one byte.
    /// `None` beyond the end.
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
            // Whoever reads there learns more than from any status.
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

    pub(crate) fn engine(&self) -> Option<&Arc<dyn Accelerator>> {
        self.engine.as_ref()
    }

    /// What keeps requests for the same sector apart, where they would damage it: it is read, changed and written, or
    /// cannot be decrypted from a part of one ciphertext and a part of another; or somebody moves it.
    pub(crate) fn locks(&self) -> &RangeLock<LockWaiter> {
        &self.locks
    }

    /// What reads and writes below are multiples of.
    pub fn sector(&self) -> u32 {
        self.shape.sector
    }

    /// True when a device has zones that are written in sequence.
    pub fn is_zoned(&self) -> bool {
        self.shape.zoned
    }

    /// What offsets and lengths must be multiples of.
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

    /// True when memory so far behind a page's beginning can be written from.
    pub(crate) fn takes_memory_at(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.shape.memory_alignment.into())
    }

    /// Room for what is kept beside so many bytes, whole sectors, wherever they are; 0 where nothing is.
    pub(crate) fn tags_for(&self, len: u64) -> usize {
        let (tags, sector) = self.shape.tags;
        usize::try_from(len.saturating_mul(tags).div_ceil(sector)).unwrap_or(usize::MAX)
    }

    /// True when something is kept beside sectors, which are read and written with it.
    pub fn has_tags(&self) -> bool {
        self.shape.tags.0 > 0
    }

    fn geometries(&self) -> impl Iterator<Item = Geometry> {
        self.devices.iter().map(|device| device.geometry())
    }
}

/// Where a volume ends whose last segment takes all of its device, as a block device would show it: whole sectors of 512 bytes.
fn end_on(last: &Segment, device: &dyn Device) -> u64 {
    let lower = last.as_stored().map_or(0, |stored| stored.lower);
    last.start.saturating_add(device.geometry().size.saturating_sub(lower) & !511)
}

/// Flushes a device past all queues.
fn flush(device: &dyn Device) -> Result<()> {
    Blocking::new(device).and_then(|mut way| way.flush()).map_err(|e| Error::lower(device.name(), e))
}
