//! A volume over its lower devices.

mod zones;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_device::{Blocking, Device, Extent, Geometry};
use underseal_volume::{Segment, SegmentKind, Stored, Volume};

use crate::control::{Control, Settings};
use crate::engine::Accelerator;
use crate::locks::RangeLock;
use crate::queue::Waiting;
use crate::workers::Workers;
use crate::{Dispatch, Error, ErrorKind, Policy, Result, Stats};

/// A volume that is open: its segments, the devices they lie on, and what can be changed while it runs. Shared by all its
/// queues.
pub struct Mapping {
    control: Control,
    devices: Vec<Arc<dyn Device>>,
    workers: Workers,
    engine: Option<Arc<dyn Accelerator>>,
    locks: RangeLock<Waiting>,
    shape: Shape,
    extents: Extents,
}

/// What another key does not change: the segments' ranges, and what is there.
#[derive(PartialEq, Eq)]
struct Extents(Vec<(Range<u64>, Lies)>);

/// Where a segment lies, and what its cipher allows.
#[derive(PartialEq, Eq)]
enum Lies {
    Stored { device: usize, lower: u64, sector: SectorSize, is_null: bool, is_local: bool },
    Zero,
    Error,
}

impl Extents {
    fn of(volume: &Volume) -> Self {
        let lies = |segment: &Segment| match &segment.kind {
            SegmentKind::Stored(Stored { device, lower, cipher, .. }) => Lies::Stored {
                device: *device,
                lower: *lower,
                sector: cipher.sector_size(),
                is_null: cipher.is_null(),
                is_local: cipher.is_local(),
            },
            SegmentKind::Zero => Lies::Zero,
            SegmentKind::Error => Lies::Error,
        };
        Self(volume.segments().iter().map(|s| (s.start..s.end(), lies(s))).collect())
    }
}

/// What stays as it is for as long as the volume is open.
#[derive(Debug, Clone, Copy)]
struct Shape {
    size: u64,
    /// What the cipher and the devices need.
    sector: u32,
    /// What requests should be multiples of.
    block: u32,
    /// What they must be multiples of.
    least: u32,
    preferred_block: u32,
    read_only: bool,
    discards: bool,
    is_null: bool,
    zoned: bool,
    /// A sector that is written to has a cipher that spreads each byte over all of it.
    spreads: bool,
    memory_alignment: u32,
}

/// What a range of the volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
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
        for (stored, len) in volume.segments().iter().filter_map(|s| Some((s.as_stored()?, s.len))) {
            let Some(device) = devices.get(stored.device) else {
                let context = format!("the volume lies on {} devices or more", stored.device + 1);
                return Err(Error::new(ErrorKind::Layout, context));
            };
            fits(stored.lower, len, &**device)?;
        }
        let (shape, extents) = (Shape::of(&volume, &devices), Extents::of(&volume));
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
        Ok(Self {
            control: Control::new(volume, Policy::INLINE),
            workers: Workers::new(devices.clone()),
            devices,
            engine: None,
            locks: RangeLock::new(shape.sector),
            shape,
            extents,
        })
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
        Ok(self)
    }

    /// Takes requests for any bytes. Those who ask what its [block](Mapping::block) is are told nothing else than before.
    #[must_use]
    pub fn with_bytes(mut self) -> Self {
        self.shape.least = 1;
        self
    }

    /// Gives the volume an accelerator, for policies that name the engine.
    #[must_use]
    pub fn with_accelerator(mut self, engine: Arc<dyn Accelerator>) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.shape.size
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
        self.shape.is_null
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
        let flushed = self.devices.iter().try_for_each(|device| flush(&**device));
        if flushed.is_err() && was_running {
            self.control.resume()?;
        }
        flushed
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

    /// True while requests are held back.
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
    /// `NotSuspended`; `Layout` when its segments lie elsewhere or have other sectors; `Busy` when the thread of a queue
    /// does not come to see it.
    pub fn replace_volume(&self, volume: Volume) -> Result<()> {
        if Extents::of(&volume) != self.extents {
            return Err(Error::new(ErrorKind::Layout, "the volume lies elsewhere, or has other sectors"));
        }
        self.control.replace(Some(Arc::new(volume)))
    }

    /// Forgets the key. The volume stays suspended until it has one again.
    ///
    /// No queue has it afterwards. A job that an engine has never given back still does.
    ///
    /// # Errors
    /// `NotSuspended`; `Busy` when the thread of a queue does not come to see it.
    pub fn wipe_key(&self) -> Result<()> {
        self.control.replace(None)
    }

    /// What the volume has done since it was opened, and what it does now.
    pub fn stats(&self) -> Stats {
        self.control.stats()
    }

    /// What the volume is made of at `offset`, for at most `len` bytes; the answer covers at least one byte.
    /// `None` beyond the end.
    pub fn status(&self, offset: u64, len: u64) -> Option<Status> {
        if offset >= self.size() {
            return None;
        }
        let data = |len| Some(Status { len, hole: false, zero: false });
        let Settings { volume: Some(volume), .. } = self.control.settings() else {
            return data(len.min(self.size() - offset).max(1));
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
            len => Some(Status { len, hole: extent.hole, zero: extent.hole && is_null }),
        }
    }

    pub(crate) fn control(&self) -> &Control {
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
    /// cannot be decrypted from a part of one ciphertext and a part of another.
    pub(crate) fn locks(&self) -> Option<&RangeLock<Waiting>> {
        (!self.shape.read_only && (self.shape.spreads || self.modifies())).then_some(&self.locks)
    }

    /// What reads and writes below are multiples of.
    pub(crate) fn sector(&self) -> u32 {
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

    fn geometries(&self) -> impl Iterator<Item = Geometry> {
        self.devices.iter().map(|device| device.geometry())
    }
}

impl Shape {
    fn of(volume: &Volume, devices: &[Arc<dyn Device>]) -> Self {
        let geometries = || devices.iter().map(|device| device.geometry());
        let sector = u32::try_from(volume.sector_size().bytes()).unwrap_or(u32::MAX);
        let sector = geometries().fold(sector, |block, geometry| block.max(geometry.block));
        let read_only = geometries().any(|geometry| geometry.read_only);
        let stored = || volume.segments().iter().filter_map(Segment::as_stored);
        Self {
            size: volume.size(),
            sector,
            block: sector,
            least: sector,
            preferred_block: geometries().fold(sector, |block, geometry| block.max(geometry.preferred_block)),
            read_only,
            discards: volume.allow_discards() && geometries().all(|geometry| geometry.discard),
            is_null: stored().all(|s| s.cipher.is_null()),
            zoned: geometries().any(|geometry| geometry.zones.is_some()),
            spreads: stored().any(|s| !s.cipher.is_local()),
            memory_alignment: geometries().fold(1, |most, geometry| most.max(geometry.memory_alignment)),
        }
    }
}

/// Flushes a device past all queues.
fn flush(device: &dyn Device) -> Result<()> {
    Blocking::new(device).and_then(|mut way| way.flush()).map_err(|e| Error::lower(device.name(), e))
}

fn fits(lower: u64, len: u64, device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let bad = |why: String| Err(Error::new(ErrorKind::Layout, format!("{}: {why}", device.name())));
    let end = lower + len;
    if end > geometry.size {
        return bad(format!(
            "the volume ends at byte {end}, the device at {}: is it cut short?",
            geometry.size
        ));
    }
    let block = u64::from(geometry.block);
    if !lower.is_multiple_of(block) || !len.is_multiple_of(block) {
        return bad(format!(
            "the data at byte {lower} does not lie on blocks of {block} bytes, as direct I/O wants: open it without"
        ));
    }
    Ok(())
}
