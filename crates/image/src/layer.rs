//! The integrity layer below an authenticated volume: read as its journal's replay would leave it,
//! or running, with threads that write the journal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use underseal_device::{Blocking, Device};
use underseal_integrity::{
    Disk, Disks, IntegrityDevice, OpenSettings, OpenedVolume, Overlay, RunSettings, WriteMode,
};
use underseal_volume::IntegrityLayer;

use crate::lower::Lower;
use crate::one_process::{OneProcess, forked};
use crate::{Error, ErrorKind, Result};

/// The layer's blocks with their tags.
pub(crate) enum Layer {
    /// Nothing is written to the lower device.
    Read(Box<ReplayedLayer>),
    Write(OneProcess<RunningLayer>),
}

impl Layer {
    pub(crate) fn open(lower: Lower, layer: &IntegrityLayer, writable: bool) -> Result<Self> {
        if writable {
            return Ok(Self::Write(OneProcess::new(RunningLayer::open(&lower, layer)?)));
        }
        Ok(Self::Read(Box::new(ReplayedLayer::open(lower, layer)?)))
    }

    /// The bytes of data that the layer provides.
    pub(crate) fn size(&self) -> Result<u64> {
        match self {
            Self::Read(layer) => Ok(layer.opened.geometry.provided().saturating_mul(512)),
            Self::Write(layer) => Ok(layer.get().map_err(forked)?.device.geometry().size),
        }
    }

    /// Reads whole blocks from byte `offset` of the layer on, and the tags that lie beside them.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Result<()> {
        match self {
            Self::Read(layer) => layer.read(offset, data, tags),
            Self::Write(layer) => {
                Ok(layer.get().map_err(forked)?.requests().read_tagged(offset, data, tags)?)
            }
        }
    }

    /// Writes whole blocks and their tags at byte `offset` of the layer.
    pub(crate) fn write(&self, offset: u64, data: &[u8], tags: &[u8]) -> Result<()> {
        match self {
            Self::Read(_) => Err(Error::new(ErrorKind::ReadOnly, "the layer was opened for reading only")),
            Self::Write(layer) => {
                Ok(layer.get().map_err(forked)?.requests().write_tagged(offset, data, tags, false)?)
            }
        }
    }

    /// Returns when everything that was written is on stable storage.
    pub(crate) fn flush(&self) -> Result<()> {
        match self {
            Self::Read(_) => Ok(()),
            Self::Write(layer) => Ok(layer.get().map_err(forked)?.requests().flush()?),
        }
    }
}

/// The layer as the header describes it. The cipher makes the tags.
fn settings(layer: &IntegrityLayer) -> Result<OpenSettings> {
    let bad = |field: &str| {
        Error::new(ErrorKind::BadHeader, format!("the {field} of the integrity layer is out of range"))
    };
    let mode = if layer.has_journal { WriteMode::Journal } else { WriteMode::Direct };
    Ok(OpenSettings {
        start: layer.offset / 512,
        tag_size: Some(u16::try_from(layer.tag_size).map_err(|_| bad("tag size"))?),
        block_size: Some(u32::try_from(layer.sector_size.bytes()).map_err(|_| bad("block size"))?),
        ..OpenSettings::new(mode)
    })
}

/// Threads of a running layer.
const WORKERS: usize = 2;

/// A layer that is written to. One request runs at a time.
pub(crate) struct RunningLayer {
    // Dropped first: the device is closed when no request can come.
    requests: Mutex<Blocking>,
    device: Arc<IntegrityDevice>,
}

impl RunningLayer {
    /// Replays the journal, if it was left with one.
    fn open(lower: &Lower, layer: &IntegrityLayer) -> Result<Self> {
        let run = RunSettings { workers: WORKERS, ..RunSettings::default() };
        let device = Arc::new(IntegrityDevice::open(lower.device()?, None, &settings(layer)?, &run)?);
        Ok(Self { requests: Mutex::new(Blocking::passed_on(&*device)?), device })
    }

    fn requests(&self) -> MutexGuard<'_, Blocking> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layer that is only read.
pub(crate) struct ReplayedLayer {
    disk: Overlay<Lower>,
    opened: OpenedVolume,
}

impl ReplayedLayer {
    fn open(lower: Lower, layer: &IntegrityLayer) -> Result<Self> {
        let mut options = settings(layer)?;
        let disk = Overlay::new(lower);
        let disks = Disks::one(&disk);
        underseal_integrity::look(&disks, &options)?.keep_bitmap(&mut options);
        let opened = underseal_integrity::open(&disks, &options)?;
        Ok(Self { disk, opened })
    }

    fn read(&self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Result<()> {
        let geometry = &self.opened.geometry;
        let (mut sector, mut data, mut tags) = (offset / 512, data, tags);
        while !data.is_empty() {
            let place = geometry.place(sector);
            let run =
                usize::try_from(place.sectors.saturating_mul(512)).unwrap_or(usize::MAX).min(data.len());
            let of_run = (run / geometry.block_size() * geometry.tag_size()).min(tags.len());
            let (now, later) = data.split_at_mut(run);
            let (tags_now, tags_later) = tags.split_at_mut(of_run);
            let failed = |e| Error::new(ErrorKind::Io, format!("cannot read sector {sector}")).with_source(e);
            self.disk.read_at(place.data, now).map_err(failed)?;
            self.disk.read_at(place.tag, tags_now).map_err(failed)?;
            sector += run as u64 / 512;
            (data, tags) = (later, tags_later);
        }
        Ok(())
    }
}
