//! A volume as a device: a layer above sees blocks, and their tags where these are not made here.
//!
//! ```text
//!   a queue's channel --- read_now, write_now ---> Core, over channels that do not wait
//!        |     ^
//!      start   |   reads and writes in place: a BlockTransfer of the core, in the queue's ring
//!        |     |
//!        |     | Mailbox, Wakeup
//!        v     |
//!      RequestQueue -> workers ------------------> Core, each over lower devices that wait
//!                      keeper: periodic work, and the clean close
//! ```
//!
//! A request that waits only for its bytes waits in the ring. Any other request goes to a worker as
//! a whole: one that waits for locked blocks, for room in the journal or among the tags, or for a
//! flush. The keeper writes full sections, copies back and recalculates tags; where the keeper is
//! late, workers do the necessary work themselves.

mod below;
mod channel;
mod jobs;
mod lower;
mod replayed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use underseal_device::{Channel, Device, Finished, Geometry, Io, IoKind, TagCheck};

use below::below;
use channel::IntegrityChannel;
use jobs::{QueuedRequest, RequestQueue};
use lower::WaitingLower;
use replayed::ReplayedDevice;

use crate::core::{Core, IntegrityStatus, RunSettings, StepResult, Stop};
use crate::{Disks, Error, ErrorKind, OpenSettings, Overlay, Result, WriteMode};

/// Bytes of zeros that a worker writes before it takes the next request.
const PIECE: u64 = 1 << 20;
/// The interval of the keeper's periodic work.
const ROUND: Duration = Duration::from_secs(1);

/// A running integrity volume over other devices. A drop closes it cleanly;
/// [`IntegrityDevice::close`] also returns errors.
pub struct IntegrityDevice {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
}

struct Shared {
    core: Core,
    data: Arc<dyn Device>,
    meta: Option<Arc<dyn Device>>,
    geometry: Geometry,
    /// The alignment of memory for the data device.
    alignment: usize,
    jobs: RequestQueue,
}

#[derive(Default)]
struct Threads {
    workers: Vec<JoinHandle<()>>,
    keeper: Option<JoinHandle<Result<()>>>,
}

impl IntegrityDevice {
    /// Opens the volume on `data`, with superblock, journal and tags on `meta` if that is given.
    /// The journal is replayed.
    ///
    /// # Errors
    /// `Unsupported` for a device that cannot hold the volume; the errors of superblock, journal
    /// and options; `Io`.
    pub fn open(
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        options: &OpenSettings,
        settings: &RunSettings,
    ) -> Result<Self> {
        let core = {
            let (disk, meta_disk) = below(&data, &meta, options)?;
            let disks = Disks { data: &disk, meta: meta_disk.as_ref().map(|disk| disk as _) };
            Core::open(&disks, options, settings, data.geometry().tag_size as usize)?
        };
        let read_only = |device: &dyn Device| device.geometry().read_only;
        let is_read_only = read_only(&*data) || meta.as_deref().is_some_and(read_only);
        Self::run(if is_read_only { core.without_writes() } else { core }, data, meta, settings)
    }

    /// Opens the volume for reading only: nothing is written, not even by the opening. Blocks that
    /// a replay would write are kept in memory, and read from there. An existing bitmap is used in
    /// every mode.
    ///
    /// # Errors
    /// As [`IntegrityDevice::open`]; `Io` where more than 1 GiB would be kept.
    pub fn open_to_read(
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        options: &OpenSettings,
        settings: &RunSettings,
    ) -> Result<Self> {
        let (core, over_data, over_meta) = {
            let (disk, meta_disk) = below(&data, &meta, options)?;
            let over_data = Overlay::new(&disk);
            let over_meta = meta_disk.as_ref().map(Overlay::new);
            let disks = Disks { data: &over_data, meta: over_meta.as_ref().map(|disk| disk as _) };
            let mut options = options.clone();
            // The requested mode's errors stay errors.
            crate::look(&disks, &options)?.keep_bitmap(&mut options);
            let core = Core::open(&disks, &options, settings, data.geometry().tag_size as usize)?;
            // The journal is not read again.
            let geometry = core.geometry();
            let journal = geometry.journal_offset()..geometry.journal_offset() + geometry.journal_bytes();
            let of_data = if over_meta.is_some() { 0..0 } else { journal.clone() };
            let over_meta = over_meta.map(|over| over.into_sectors(journal));
            (core.without_writes(), over_data.into_sectors(of_data), over_meta)
        };
        let meta = meta.zip(over_meta).map(|(meta, over)| ReplayedDevice::over(meta, over));
        Self::run(core, ReplayedDevice::over(data, over_data), meta, settings)
    }

    fn run(
        core: Core,
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        settings: &RunSettings,
    ) -> Result<Self> {
        let (geometry, unverified) = (geometry(&core, &*data), core.unverified());
        if core.is_read_only() && unverified > 0 {
            log::warn!(
                "{}: {unverified} bytes of {} are compared with nothing: their checksums are still to be made, which needs an opening \
                 for writing",
                data.name(),
                geometry.size
            );
        }
        let alignment = data.geometry().memory_alignment as usize;
        let shared =
            Arc::new(Shared { core, data, meta, geometry, alignment, jobs: RequestQueue::default() });
        let device = Self { shared, threads: Mutex::default() };
        device.start(settings.workers.max(1))?;
        Ok(device)
    }

    /// Starts the threads. Each opens the devices itself, since a ring belongs to its thread;
    /// afterwards no thread opens anything.
    fn start(&self, workers: usize) -> Result<()> {
        let cannot = |e| Error::new(ErrorKind::Memory, "cannot start a thread for the volume").with_source(e);
        let mut threads = self.threads();
        let (ready, readies) = mpsc::channel();
        for _ in 0..workers {
            let (shared, ready) = (self.shared.clone(), ready.clone());
            let body = move || {
                if let Some(mut lower) = shared.waiting(&ready) {
                    shared.work(&mut lower);
                }
            };
            threads.workers.push(Builder::new().name("integrity".into()).spawn(body).map_err(cannot)?);
        }
        let shared = self.shared.clone();
        let body = move || match shared.waiting(&ready) {
            Some(mut lower) => shared.keep(&mut lower),
            None => Ok(()),
        };
        threads.keeper = Some(Builder::new().name("integrity-keep".into()).spawn(body).map_err(cannot)?);
        readies.iter().take(workers + 1).collect()
    }

    /// The counters and state for `status`.
    pub fn status(&self) -> IntegrityStatus {
        self.shared.core.status()
    }

    /// The mode of the volume.
    pub fn mode(&self) -> WriteMode {
        self.shared.core.mode()
    }

    /// Ends the threads and leaves the volume clean. No request may be in flight or follow. A
    /// second call does nothing.
    ///
    /// # Errors
    /// `Io` when the volume could not be left clean: the next opening then replays or recalculates.
    pub fn close(&self) -> Result<()> {
        let mut threads = self.threads();
        self.shared.jobs.end();
        let joined: Vec<_> = threads.workers.drain(..).map(JoinHandle::join).collect();
        // The keeper closes the volume, alone.
        self.shared.jobs.end_keeper();
        let kept = threads.keeper.take().map_or(Ok(()), |keeper| keeper.join().map_err(|_| panicked())?);
        if joined.iter().any(std::result::Result::is_err) { Err(panicked()) } else { kept }
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a thread of the volume has panicked")
}

impl Drop for IntegrityDevice {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            log::error!("{}: the volume is not clean: {}", self.name(), underseal_error::with_causes(&e));
        }
    }
}

/// The geometry that the volume shows to the layer above.
fn geometry(core: &Core, data: &dyn Device) -> Geometry {
    let (block, below) = (core.geometry().block_size(), data.geometry());
    let tag_size = u32::try_from(core.handed_tags()).unwrap_or(u32::MAX);
    let block = u32::try_from(block).unwrap_or(u32::MAX);
    Geometry {
        size: core.size(),
        block,
        preferred_block: block.max(below.preferred_block),
        memory_alignment: 1,
        read_only: core.is_read_only(),
        discard: core.takes_discards(),
        zones: None,
        tag_size,
    }
}

impl Device for IntegrityDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        Ok(Box::new(IntegrityChannel::new(self.shared.clone(), depth)?))
    }

    fn name(&self) -> &str {
        self.shared.data.name()
    }

    /// The journal's section that fills, and tags that are not written yet, are in memory.
    fn holds_acknowledged(&self) -> bool {
        true
    }

    fn below(&self) -> Vec<&dyn Device> {
        self.shared.meta.iter().chain([&self.shared.data]).map(|device| &**device).collect()
    }

    fn tag_check(&self) -> Option<&dyn TagCheck> {
        Some(self)
    }
}

impl TagCheck for IntegrityDevice {
    fn verifies(&self) -> bool {
        self.shared.core.handed_tags() == 0 && self.mode() != WriteMode::Recovery
    }

    fn forget(&self) {
        self.shared.core.forget();
    }

    fn unverified(&self) -> u64 {
        self.shared.core.unverified()
    }
}

impl Shared {
    /// Opens the devices for the calling thread, and reports the result.
    fn waiting(&self, ready: &mpsc::Sender<Result<()>>) -> Option<WaitingLower> {
        let (way, told) = match WaitingLower::new(&*self.data, self.meta.as_deref()) {
            Ok(way) => (Some(way), Ok(())),
            Err(e) => (None, Err(e)),
        };
        // After the failure of another thread the report has no receiver.
        let _ = ready.send(told);
        way
    }

    fn work(&self, lower: &mut WaitingLower) {
        while let Some(job) = self.jobs.next() {
            let Some(QueuedRequest { slot, io, to, done }) = self.shorten(lower, job) else { continue };
            let done = self.run(lower, slot, io, done);
            self.rouse_keeper();
            to.send(done);
        }
    }

    /// Writes one piece of a long request for zeros and puts the rest at the end of the queue, so
    /// that other requests wait for a piece and not for all of it. Returns the part that this
    /// worker has to do; `None` without one.
    fn shorten(&self, lower: &mut WaitingLower, mut job: QueuedRequest) -> Option<QueuedRequest> {
        while let Io::Zero { offset, len, .. } = job.io
            && len - job.done > PIECE
        {
            let place = offset + job.done;
            if let Err(stop) = self.zero(lower, place, PIECE) {
                let failed = as_result(Err(stop), job.io.kind(), place);
                job.to.send(Finished::of(job.slot, job.io, failed));
                return None;
            }
            job.done += PIECE;
            self.rouse_keeper();
            // A volume that is being closed refuses the rest: this worker writes it.
            job = self.jobs.push(job)?;
        }
        Some(job)
    }

    /// Does a request that may wait; of zeros, all but the first `zeroed` bytes.
    fn run(&self, lower: &mut WaitingLower, slot: u32, mut io: Io, zeroed: u64) -> Finished {
        let durable = io.is_durable();
        let done = match &mut io {
            Io::Read { offset, buffer, range } => {
                self.core.read(lower, *offset, &mut buffer[range.clone()], &mut [])
            }
            Io::ReadTagged { offset, buffer, range, tags } => {
                let n = self.geometry.tags_of(range.len());
                self.core.read(lower, *offset, &mut buffer[range.clone()], &mut tags[..n])
            }
            Io::Write { offset, buffer, range, .. } => {
                self.core.write(lower, *offset, &buffer[range.clone()], &[])
            }
            Io::WriteTagged { offset, buffer, range, tags, .. } => {
                let n = self.geometry.tags_of(range.len());
                self.core.write(lower, *offset, &buffer[range.clone()], &tags[..n])
            }
            Io::Flush => self.core.flush(lower),
            Io::Discard { offset, len } => self.core.discard(lower, *offset, *len),
            Io::Zero { offset, len, .. } => self.zero(lower, *offset + zeroed, *len - zeroed),
            Io::Prefetch { .. } => Ok(()),
        };
        let done = done.and_then(|()| if durable { self.core.flush(lower) } else { Ok(()) });
        let (kind, (offset, _)) = (io.kind(), io.extent());
        Finished::of(slot, io, as_result(done, kind, offset))
    }

    /// Writes at most [`PIECE`] zeros, with their tags.
    fn zero(&self, lower: &mut WaitingLower, offset: u64, len: u64) -> StepResult {
        let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
        self.core.write(lower, offset, &zeros, &[])
    }

    /// Refuses requests with tags where tags are made here, and requests without where they are
    /// not.
    #[expect(clippy::result_large_err, reason = "a request that is over goes back as it is")]
    fn refused(&self, io: Io, slot: u32) -> std::result::Result<Io, Finished> {
        if self.geometry.tag_size == 0 {
            return io.without_tags(slot);
        }
        if matches!(io, Io::Write { .. } | Io::Zero { .. }) {
            let error = untagged(io.kind(), io.extent().0);
            return Err(Finished::of(slot, io, Err(error)));
        }
        Ok(io)
    }

    fn rouse_keeper(&self) {
        if self.core.wants_tending() {
            self.jobs.rouse_keeper();
        }
    }

    /// The keeper's loop. It closes the volume when all other threads have ended.
    fn keep(&self, lower: &mut WaitingLower) -> Result<()> {
        while self.jobs.wait_as_keeper(if self.core.is_recalculating() { Duration::ZERO } else { ROUND }) {
            // A failure here has made the volume fail, and the next write or flush returns it.
            let _ = self.core.tend(lower);
            let _ = self.core.recalculate(lower);
        }
        match self.core.close(lower) {
            Ok(()) | Err(Stop::Blocked(_)) => Ok(()),
            Err(Stop::Failed(e)) => {
                Err(Error::new(ErrorKind::Io, "cannot close the integrity volume").with_source(e))
            }
        }
    }
}

fn untagged(kind: IoKind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "each block needs a tag, and none came with it", rustix::io::Errno::OPNOTSUPP)
}

fn as_result(step: StepResult, kind: IoKind, offset: u64) -> underseal_device::Result<()> {
    match step {
        Ok(()) => Ok(()),
        Err(Stop::Failed(e)) => Err(e),
        // A device that waits never returns this.
        Err(Stop::Blocked(_)) => Err(kind.failed(offset, "it would wait", rustix::io::Errno::AGAIN)),
    }
}
