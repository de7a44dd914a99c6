//! dm-integrity's layout between an authenticated volume and its image: opening, making, and wiping
//! it with zeros that have their tags.

mod line;

pub(crate) use line::options as line_options;

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::Device;
use underseal_integrity::{
    Disk, DiskSizes, Disks, IntegrityDevice, NewSuperblock, OpenSettings, RunSettings, Superblock,
    VolumeGeometry, WriteMode,
};
use underseal_volume::table::IntegrityLine;
use underseal_volume::{IntegrityLayer, Target};

use crate::cli::LayerArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::progress::Progress;

/// Opens a volume's layer on its device. The journal's contents are copied to their places, or, on
/// a read-only device, into memory.
pub(crate) fn open(
    device: &Arc<dyn Device>,
    layer: &IntegrityLayer,
    how: LayerArgs,
    read_only: bool,
) -> Result<Arc<IntegrityDevice>> {
    let mode = match () {
        () if how.integrity_recovery_mode => WriteMode::Recovery,
        () if how.integrity_no_journal || !layer.has_journal => WriteMode::Direct,
        () => WriteMode::Journal,
    };
    let options = options(layer, mode)?;
    let below = Below { data: device.clone(), meta: None, read_only };
    Ok(stand(below, &options, &how.cache.settings())?)
}

/// Opens the layer of a table's line. Fails with the layer's errors; with `Usage` for a line that
/// does not fit it.
pub(crate) fn open_line(below: Below, line: &IntegrityLine) -> Result<Arc<IntegrityDevice>> {
    let (options, settings) = line::options(line)?;
    Ok(stand(below, &options, &settings)?)
}

/// The devices of a layer.
pub(crate) struct Below {
    pub(crate) data: Arc<dyn Device>,
    pub(crate) meta: Option<Arc<dyn Device>>,
    /// True when even opening the layer must not write.
    pub(crate) read_only: bool,
}

/// Opens a layer on its devices.
pub(crate) fn stand(
    below: Below,
    options: &OpenSettings,
    settings: &RunSettings,
) -> underseal_integrity::Result<Arc<IntegrityDevice>> {
    let Below { data, meta, read_only } = below;
    let open = if read_only { IntegrityDevice::open_to_read } else { IntegrityDevice::open };
    Ok(Arc::new(open(data, meta, options, settings)?))
}

/// Closes layers cleanly, after the last request. Fails with the first layer's error: that layer is
/// recovered at the next open.
pub(crate) fn close(layers: &[Arc<IntegrityDevice>]) -> Result<()> {
    let closed: Vec<_> = layers.iter().map(|layer| layer.close()).collect();
    Ok(closed.into_iter().collect::<underseal_integrity::Result<()>>()?)
}

/// Opens a layer in direct mode, to be wiped.
pub(crate) fn open_directly(
    device: &Arc<dyn Device>,
    layer: &IntegrityLayer,
) -> Result<Arc<IntegrityDevice>> {
    let options = options(layer, WriteMode::Direct)?;
    let below = Below { data: device.clone(), meta: None, read_only: false };
    Ok(stand(below, &options, &RunSettings::default())?)
}

/// Returns the settings of a header's layer, without hash and keys: tags come from above.
fn options(layer: &IntegrityLayer, mode: WriteMode) -> Result<OpenSettings> {
    let bad = |what: &str| Error::new(Exit::BadHeader, format!("the integrity layer's {what} is none"));
    Ok(OpenSettings {
        start: layer.offset / 512,
        tag_size: Some(u16::try_from(layer.tag_size).map_err(|_| bad("tag size"))?),
        block_size: Some(u32::try_from(layer.sector_size.bytes()).map_err(|_| bad("block size"))?),
        ..OpenSettings::new(mode)
    })
}

/// The settings of a new volume's layer, which fits the image.
pub(crate) struct Plan {
    options: OpenSettings,
    superblock: Superblock,
}

/// Plans the layer of a new volume on an image of `size` bytes, without writing. `found` is the
/// existing device. Fails when the layer does not fit.
pub(crate) fn plan(layer: &IntegrityLayer, size: u64, found: Option<&dyn Device>) -> Result<Plan> {
    let options = options(layer, WriteMode::Journal)?;
    let sizes = DiskSizes { data: size, meta: None };
    let superblock = superblock(&options, sizes)?;
    if let Some(device) = found {
        let geometry = VolumeGeometry::new(&superblock, &options, sizes)?;
        IntegrityDevice::fits(&geometry, options.mode, device, None)?;
    }
    Ok(Plan { options, superblock })
}

/// Returns the bytes that the layer of a new volume will offer on an image of `size` bytes; 0 where
/// no layer fits. Fails for an impossible layer.
pub(crate) fn offers(layer: &IntegrityLayer, size: u64) -> Result<u64> {
    match superblock(&options(layer, WriteMode::Journal)?, DiskSizes { data: size, meta: None }) {
        Ok(superblock) => Ok(superblock.provided * 512),
        Err(e) if e.kind() == underseal_integrity::ErrorKind::TooSmall => Ok(0),
        Err(e) => Err(e.into()),
    }
}

/// Returns the superblock of a new volume's layer.
fn superblock(options: &OpenSettings, sizes: DiskSizes) -> underseal_integrity::Result<Superblock> {
    let format = NewSuperblock {
        tag_size: options.tag_size,
        block_size: options.block_size.unwrap_or_default(),
        ..NewSuperblock::default()
    };
    format.superblock(options, sizes)
}

/// Writes a planned layer: superblock and an empty journal. Fails with the layer's errors; with
/// `Failed`.
pub(crate) fn make(on: &(dyn Target + Sync), plan: &Plan) -> Result<()> {
    let disk = On(on);
    Ok(underseal_integrity::format(&Disks::one(&disk), &plan.options, &plan.superblock)?)
}

/// Bytes of a volume that a thread wipes at a time.
const STRETCH: u64 = 16 << 20;

/// Fills a volume with zeros, so that every sector has a matching tag: on all processors, each with
/// a separate range.
pub(crate) fn wipe(mapping: &Arc<Mapping>, progress: &mut Progress) -> Result<()> {
    let next = AtomicU64::new(0);
    let stops = AtomicBool::new(false);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let (told, done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (told, next, stops) = (told.clone(), &next, &stops);
            scope.spawn(move || {
                let filled = fill(mapping, next, stops, |bytes| {
                    // The receiver lives until the end.
                    let _ = told.send(Ok(bytes));
                });
                if let Err(e) = filled {
                    let _ = told.send(Err(e));
                }
            });
        }
        drop(told);
        let mut failed = None;
        for news in done {
            match news {
                Ok(bytes) => progress.advance(bytes),
                Err(e) => {
                    stops.store(true, Ordering::Relaxed);
                    failed.get_or_insert(e);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })?;
    let mut queue = Queue::open(mapping.clone(), QueueOptions { depth: 1, max_request: 4096 })?;
    request(&mut queue, Request::Flush)
}

fn fill(mapping: &Arc<Mapping>, next: &AtomicU64, stops: &AtomicBool, done: impl Fn(u64)) -> Result<()> {
    let mut queue = Queue::open(mapping.clone(), QueueOptions { depth: 1, max_request: 1 << 20 })?;
    loop {
        let offset = next.fetch_add(STRETCH, Ordering::Relaxed);
        let len = mapping.size().saturating_sub(offset).min(STRETCH);
        if len == 0 || stops.load(Ordering::Relaxed) {
            return Ok(());
        }
        let zeroes = Request::WriteZeroes { offset, len, durable: false, punch: false, fast: false };
        request(&mut queue, zeroes)?;
        done(len);
    }
}

/// Submits one request, and waits for it.
fn request(queue: &mut Queue, request: Request) -> Result<()> {
    queue.submit(0, request).map_err(|_| Error::new(Exit::Failed, "no memory left for requests"))?;
    loop {
        if let Some(completion) = queue.next_completion() {
            return Ok(completion.result?);
        }
        queue.wait().map_err(|e| Error::new(Exit::Failed, "cannot wait for the disk").because(&e))?;
    }
}

/// An image's bytes as the layer's disk.
struct On<'t>(&'t (dyn Target + Sync));

impl Disk for On<'_> {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
