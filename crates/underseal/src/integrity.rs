//! dm-integrity's layout between an authenticated volume and its image: opened, made, and filled with zeros that have their tags.

mod line;

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::Device;
use underseal_integrity::{Disk, Disks, Format, IntegrityDevice, Mode, Options, Overlay, Settings};
use underseal_volume::table::IntegrityLine;
use underseal_volume::{IntegrityLayer, Target};

use crate::cli::LayerArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::DeviceBytes;
use crate::progress::Progress;

/// Opens a volume's layer on its device. What its journal holds goes to its place.
///
/// # Errors
/// Those of the layer; `Usage` for a journal that cannot be put in order because nothing may be written.
pub(crate) fn open(
    device: &Arc<dyn Device>,
    layer: &IntegrityLayer,
    how: LayerArgs,
    read_only: bool,
) -> Result<Arc<IntegrityDevice>> {
    let mode = match () {
        () if how.integrity_recovery_mode => Mode::Recovery,
        () if read_only => {
            is_settled(&**device, &options(layer, Mode::Journal)?)?;
            Mode::Recovery
        }
        () if how.integrity_no_journal || !layer.has_journal => Mode::Direct,
        () => Mode::Journal,
    };
    in_mode(device, layer, mode)
}

/// Opens the layer of a table's line.
///
/// # Errors
/// Those of the layer; `Usage` for a line that does not fit it.
pub(crate) fn open_line(
    device: Arc<dyn Device>,
    line: &IntegrityLine,
    read_only: bool,
) -> Result<Arc<IntegrityDevice>> {
    let (mut options, settings) = line::options(line)?;
    if read_only && options.mode != Mode::Recovery {
        is_settled(&*device, &options)?;
        // Tags that are made here are compared here, which recovery does not; others whoever is above compares.
        options.mode = if options.hash.is_some() { Mode::Direct } else { Mode::Recovery };
    }
    Ok(Arc::new(IntegrityDevice::open(device, None, &options, &settings)?))
}

/// The same in direct mode, to be filled.
pub(crate) fn open_directly(
    device: &Arc<dyn Device>,
    layer: &IntegrityLayer,
) -> Result<Arc<IntegrityDevice>> {
    in_mode(device, layer, Mode::Direct)
}

fn in_mode(device: &Arc<dyn Device>, layer: &IntegrityLayer, mode: Mode) -> Result<Arc<IntegrityDevice>> {
    let options = options(layer, mode)?;
    Ok(Arc::new(IntegrityDevice::open(device.clone(), None, &options, &Settings::default())?))
}

/// What a header says of its layer. Neither hash nor keys: tags come from above.
fn options(layer: &IntegrityLayer, mode: Mode) -> Result<Options> {
    let bad = |what: &str| Error::new(Exit::BadHeader, format!("the integrity layer's {what} is none"));
    Ok(Options {
        start: layer.offset / 512,
        tag_size: Some(u16::try_from(layer.tag_size).map_err(|_| bad("tag size"))?),
        block_size: Some(u32::try_from(layer.sector_size.bytes()).map_err(|_| bad("block size"))?),
        ..Options::new(mode)
    })
}

/// Refuses a layer whose journal holds what is not in its place, as far as that can be said without writing.
fn is_settled(device: &dyn Device, options: &Options) -> Result<()> {
    let bytes = DeviceBytes::new(device)?;
    let disk = On(&bytes);
    let opened = underseal_integrity::open(&Disks::one(&Overlay::new(&disk)), options)?;
    match opened.replayed {
        Some(replayed) if replayed.entries > 0 => {
            let context =
                "its journal holds writes that may not be in their places yet, and nothing may be written";
            Err(Error::usage(context).with_remedy(
                "opening it for writing once; --integrity-recovery-mode reads what is in its place without them",
            ))
        }
        _ => Ok(()),
    }
}

/// Makes the layer of a new volume: superblock and an empty journal.
///
/// # Errors
/// Those of the layer; `Failed`.
pub(crate) fn make(on: &(dyn Target + Sync), layer: &IntegrityLayer) -> Result<()> {
    let disk = On(on);
    let disks = Disks::one(&disk);
    let options = options(layer, Mode::Journal)?;
    let format = Format {
        tag_size: options.tag_size,
        block_size: options.block_size.unwrap_or_default(),
        ..Format::default()
    };
    let superblock = format.superblock(&options, disks.sizes()?)?;
    Ok(underseal_integrity::format(&disks, &options, &superblock)?)
}

/// Bytes of a volume that a thread fills at a time.
const STRETCH: u64 = 16 << 20;

/// Fills a volume with zeros, so that every sector has a tag that fits: on all processors, each with a stretch of its own.
///
/// # Errors
/// Those of the volume.
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
                    // Whoever shows it is there to the end.
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

/// Does one request, and waits for it.
fn request(queue: &mut Queue, request: Request) -> Result<()> {
    queue.submit(0, request).map_err(|_| Error::new(Exit::Failed, "no memory left for requests"))?;
    loop {
        if let Some(completion) = queue.next_completion() {
            return Ok(completion.result?);
        }
        queue.wait().map_err(|e| Error::new(Exit::Failed, "cannot wait for the disk").because(&e))?;
    }
}

/// An image's bytes, as the layer wants them.
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
