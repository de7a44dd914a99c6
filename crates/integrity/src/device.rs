//! A volume as a device: what lies on it sees blocks, and their tags where those are not made here.
//!
//! ```text
//!   a queue's channel --- read_now, write_now ---> Core, over channels of its own that do not wait
//!        |     ^
//!      start   | Mailbox, Bell
//!        v     |
//!      Jobs -> workers -------------------------> Core, each over its own way that waits
//!              keeper: what is to be done in time, and the clean close
//! ```
//!
//! A request that would wait goes to a worker as a whole. The keeper writes full sections, copies back, makes tags anew; where it is
//! late, workers do what they need themselves.

mod below;
mod jobs;
mod lower;
mod replayed;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use underseal_device::{
    Bell, Channel, Device, Finished, Geometry, Io, Kind, Mailbox, Now, POLLIN, Ring, Started, Token,
    monotonic,
};

use below::below;
use jobs::{Job, Jobs};
use lower::{AtOnce, Waiting};
use replayed::Replayed;

use crate::core::{Core, Settings, Status, Step, Stop};
use crate::{Disks, Error, ErrorKind, Mode, Options, Overlay, Result};

/// What a channel is woken for: a request is over, or it is time to try again to listen for that.
const BELL: u8 = 0;
const CLOCK: u8 = 1;
/// How soon to try again, when the ring was full.
const SOON: Duration = Duration::from_millis(10);
/// How often the keeper looks around by itself.
const ROUND: Duration = Duration::from_secs(1);

/// A running integrity volume over other devices. Dropping it closes it cleanly; [`IntegrityDevice::close`] says whether that went well.
pub struct IntegrityDevice {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
}

struct Shared {
    core: Core,
    data: Arc<dyn Device>,
    meta: Option<Arc<dyn Device>>,
    geometry: Geometry,
    jobs: Jobs,
}

#[derive(Default)]
struct Threads {
    workers: Vec<JoinHandle<()>>,
    keeper: Option<JoinHandle<Result<()>>>,
}

impl IntegrityDevice {
    /// Opens the volume on `data`, with superblock, journal and tags on `meta` where that is given. A journal is replayed.
    ///
    /// # Errors
    /// `Unsupported` for a device on which such a volume cannot be, else what superblock, journal and options do not allow, and `Io`.
    pub fn open(
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        options: &Options,
        settings: &Settings,
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

    /// The same, to be read only: nothing is written, also by opening it. What that would write, the blocks of the journal above all, is
    /// kept in memory, and read from there.
    ///
    /// # Errors
    /// As [`IntegrityDevice::open`]; `Io` where that is more than 1 GiB.
    pub fn open_to_read(
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        options: &Options,
        settings: &Settings,
    ) -> Result<Self> {
        let (core, over_data, over_meta) = {
            let (disk, meta_disk) = below(&data, &meta, options)?;
            let over_data = Overlay::new(&disk);
            let over_meta = meta_disk.as_ref().map(Overlay::new);
            let disks = Disks { data: &over_data, meta: over_meta.as_ref().map(|disk| disk as _) };
            let core = Core::open(&disks, options, settings, data.geometry().tag_size as usize)?;
            // Nobody looks at the journal again.
            let geometry = core.geometry();
            let journal = geometry.journal_offset()..geometry.journal_offset() + geometry.journal_bytes();
            let of_data = if over_meta.is_some() { 0..0 } else { journal.clone() };
            let over_meta = over_meta.map(|over| over.into_sectors(journal));
            (core.without_writes(), over_data.into_sectors(of_data), over_meta)
        };
        let meta = meta.zip(over_meta).map(|(meta, over)| Replayed::over(meta, over));
        Self::run(core, Replayed::over(data, over_data), meta, settings)
    }

    fn run(
        core: Core,
        data: Arc<dyn Device>,
        meta: Option<Arc<dyn Device>>,
        settings: &Settings,
    ) -> Result<Self> {
        let geometry = geometry(&core, &*data);
        let shared = Arc::new(Shared { core, data, meta, geometry, jobs: Jobs::default() });
        let device = Self { shared, threads: Mutex::default() };
        device.start(settings.workers.max(1))?;
        Ok(device)
    }

    /// Starts the threads. Each makes its own way to the devices, since a ring is its thread's alone; from then on none opens anything.
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

    /// What the volume tells of itself.
    pub fn status(&self) -> Status {
        self.shared.core.status()
    }

    /// The mode in which it runs.
    pub fn mode(&self) -> Mode {
        self.shared.core.mode()
    }

    /// Ends the threads and leaves the volume clean. No request is in flight, and none comes. The second time nothing happens.
    ///
    /// # Errors
    /// `Io` when it could not be left clean: then the next who opens it replays or recalculates.
    pub fn close(&self) -> Result<()> {
        let mut threads = self.threads();
        self.shared.jobs.end();
        for worker in threads.workers.drain(..) {
            worker.join().map_err(|_| panicked())?;
        }
        self.shared.jobs.end_keeper();
        threads.keeper.take().map_or(Ok(()), |keeper| keeper.join().map_err(|_| panicked())?)
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

/// What the volume is to those above.
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
        let replies = Replies { mailbox: Mailbox::new(depth as usize), bell: Bell::new().map_err(no_bell)? };
        Ok(Box::new(IntegrityChannel {
            at_once: AtOnce::new(&*self.shared.data, self.shared.meta.as_deref())?,
            shared: self.shared.clone(),
            replies: Arc::new(replies),
            come: VecDeque::new(),
            in_flight: 0,
            listens: false,
            ticks: false,
        }))
    }

    fn name(&self) -> &str {
        self.shared.data.name()
    }

    fn answers_at_once(&self) -> bool {
        self.shared.data.answers_at_once()
    }

    fn verifies(&self) -> bool {
        self.shared.core.handed_tags() == 0 && self.mode() != Mode::Recovery
    }
}

fn no_bell(e: std::io::Error) -> underseal_device::Error {
    underseal_device::Error::new(underseal_device::ErrorKind::Open, "no descriptor is left").with_source(e)
}

impl Shared {
    /// The calling thread's way to the devices; says whether there is one.
    fn waiting(&self, ready: &mpsc::Sender<Result<()>>) -> Option<Waiting> {
        let (way, told) = match Waiting::new(&*self.data, self.meta.as_deref()) {
            Ok(way) => (Some(way), Ok(())),
            Err(e) => (None, Err(e)),
        };
        // Nobody listens any more when another thread has failed.
        let _ = ready.send(told);
        way
    }

    fn work(&self, lower: &mut Waiting) {
        while let Some(Job { slot, io, to }) = self.jobs.next() {
            let done = self.run(lower, slot, io);
            self.rouse_keeper();
            to.send(done);
        }
    }

    /// Does a request that may wait.
    fn run(&self, lower: &mut Waiting, slot: u32, mut io: Io) -> Finished {
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
            Io::Zero { offset, len, .. } => self.zero(lower, *offset, *len),
            Io::Prefetch { .. } => Ok(()),
        };
        let done = done.and_then(|()| if durable { self.core.flush(lower) } else { Ok(()) });
        let (kind, (offset, _)) = (io.kind(), io.extent());
        Finished::of(slot, io, as_result(done, kind, offset))
    }

    /// Zeros have tags like everything else.
    fn zero(&self, lower: &mut Waiting, offset: u64, len: u64) -> Step {
        const MOST: u64 = 1 << 20;
        let zeros = vec![0; usize::try_from(len.min(MOST)).unwrap_or(0)];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(MOST);
            self.core.write(lower, offset + done, &zeros[..usize::try_from(n).unwrap_or(0)], &[])?;
            done += n;
        }
        Ok(())
    }

    /// Requests that make no sense here: with tags where they are made, without where they are not.
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

    /// The keeper's life. It closes the volume when all others have ended.
    fn keep(&self, lower: &mut Waiting) -> Result<()> {
        while self.jobs.wait_as_keeper(if self.core.is_recalculating() { Duration::ZERO } else { ROUND }) {
            // What fails here has made the volume fail, and is told to whoever writes or flushes next.
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

fn untagged(kind: Kind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "each block needs a tag, and none came with it", rustix::io::Errno::OPNOTSUPP)
}

fn as_result(step: Step, kind: Kind, offset: u64) -> underseal_device::Result<()> {
    match step {
        Ok(()) => Ok(()),
        Err(Stop::Failed(e)) => Err(e),
        // A way that waits never says so.
        Err(Stop::Blocked(_)) => Err(kind.failed(offset, "it would wait", rustix::io::Errno::AGAIN)),
    }
}

fn as_now(step: Step) -> Now {
    match step {
        Ok(()) => Now::Done,
        Err(Stop::Blocked(n)) => Now::Blocked(n),
        Err(Stop::Failed(e)) => Now::Failed(e),
    }
}

/// Where a channel's answers come.
struct Replies {
    mailbox: Mailbox<Finished>,
    bell: Bell,
}

impl Replies {
    fn send(&self, done: Finished) {
        if self.mailbox.send(done) {
            self.bell.ring();
        }
    }
}

struct IntegrityChannel {
    at_once: AtOnce,
    shared: Arc<Shared>,
    replies: Arc<Replies>,
    come: VecDeque<Finished>,
    in_flight: usize,
    /// The ring waits for the bell, or for a time to try that again.
    listens: bool,
    ticks: bool,
}

impl IntegrityChannel {
    /// Sees to it that the ring wakes the channel when something comes, or has come already.
    fn listen(&mut self, ring: &mut Ring) {
        if !self.replies.mailbox.may_sleep(|| false) {
            self.replies.bell.ring();
        }
        if !self.listens {
            match ring.poll(self.replies.bell.as_fd(), POLLIN, Token::channel(BELL)) {
                Ok(()) => self.listens = true,
                Err(_) if self.ticks => {}
                Err(_) => self.ticks = ring.timeout(Token::channel(CLOCK), monotonic() + SOON).is_ok(),
            }
        }
    }

    fn after_write(&self, step: Step) -> Now {
        self.shared.rouse_keeper();
        as_now(step)
    }
}

impl Channel for IntegrityChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Now {
        as_now(self.shared.core.read(&mut self.at_once, offset, data, &mut []))
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Now {
        if self.shared.geometry.tag_size > 0 {
            return Now::Failed(untagged(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, &[]);
        self.after_write(step)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Read, offset));
        }
        as_now(self.shared.core.read(&mut self.at_once, offset, data, tags))
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, tags);
        // All of it or nothing: what was put into the journal is put there again.
        match self.after_write(step) {
            Now::Blocked(_) => Now::Blocked(0),
            now => now,
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        match self.shared.refused(io, slot) {
            Err(refused) => Started::Finished(refused),
            Ok(io) => {
                if let Some(Job { slot, io, .. }) =
                    self.shared.jobs.push(Job { slot, io, to: self.replies.clone() })
                {
                    let (kind, (offset, _)) = (io.kind(), io.extent());
                    let closed = kind.failed(offset, "the volume is closed", rustix::io::Errno::SHUTDOWN);
                    return Started::Finished(Finished::of(slot, io, Err(closed)));
                }
                self.in_flight += 1;
                self.listen(ring);
                Started::Pending
            }
        }
    }

    /// Nothing in the ring is a request's.
    fn finish(&mut self, _ring: &mut Ring, _token: Token, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: Token, _result: i32, over: &mut Vec<Finished>) {
        match token.what() {
            BELL => {
                self.listens = false;
                self.replies.bell.heard();
            }
            _ => self.ticks = false,
        }
        self.replies.mailbox.awake();
        self.replies.mailbox.take(&mut self.come);
        self.in_flight -= self.come.len();
        over.extend(self.come.drain(..));
        if self.in_flight > 0 {
            self.listen(ring);
        }
    }
}

fn not_kept(kind: Kind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "the volume makes its tags itself", rustix::io::Errno::OPNOTSUPP)
}
