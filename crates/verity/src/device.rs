//! The device: reads that are compared with the tree.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

use rustix::io::Errno;
use underseal_device::{
    Blocking, Channel, Device, Finished, Geometry, Immediate, Io, IoKind, ReplyReceiver, Ring, RingToken,
    Started, TagCheck,
};

use crate::cache::VerifiedBlocks;
use crate::jobs::{WaitingRead, WaitingReads};
use crate::tree::{BlockHash, Tree};
use crate::{Error, ErrorKind, Result};

/// Threads that do the reads that must wait for the devices.
const WORKERS: usize = 4;

/// Options beside the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VerityOptions {
    /// Corrupted blocks are logged, and read unchanged.
    pub ignore_corruption: bool,
    /// Blocks whose hash is that of zeros are not read.
    pub ignore_zero_blocks: bool,
}

/// A verity device over two others. Nothing can be written to it.
pub struct VerityDevice {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    tree: Tree,
    options: VerityOptions,
    /// The hash of a block of zeros, if the option needs it.
    zeros: Option<BlockHash>,
    data: Arc<dyn Device>,
    hashes: Arc<dyn Device>,
    geometry: Geometry,
    cache: VerifiedBlocks,
    corrupted: AtomicBool,
    jobs: WaitingReads,
}

/// The reason why a read ends.
enum Stop {
    /// The read would have to wait.
    Blocked,
    Failed(underseal_device::Error),
}

impl From<underseal_device::Error> for Stop {
    fn from(e: underseal_device::Error) -> Self {
        Self::Failed(e)
    }
}

type Step<T = ()> = std::result::Result<T, Stop>;

/// The data device or the hash device.
#[derive(Clone, Copy)]
enum Side {
    Data,
    Hashes,
}

/// A thread's access to the two devices.
trait Lower {
    fn read(&mut self, of: Side, offset: u64, bytes: &mut [u8]) -> Step;
}

impl VerityDevice {
    /// The data of `data` under a tree on `hashes`.
    ///
    /// # Errors
    /// `TooSmall` when a device ends before its blocks do; `BadOption` for blocks that it cannot
    /// read; `Memory`.
    pub fn open(
        data: Arc<dyn Device>,
        hashes: Arc<dyn Device>,
        tree: Tree,
        options: VerityOptions,
    ) -> Result<Self> {
        let settings = tree.settings();
        let (of_data, of_hashes) = (data.geometry(), hashes.geometry());
        if !settings.data_block.is_multiple_of(of_data.block) {
            return Err(Error::new(ErrorKind::BadOption, "Invalid data device block size"));
        }
        if !settings.hash_block.is_multiple_of(of_hashes.block) {
            return Err(Error::new(ErrorKind::BadOption, "Invalid hash device block size"));
        }
        if tree.data_size() > of_data.size {
            return Err(Error::new(ErrorKind::TooSmall, "Data device is too small"));
        }
        if tree.hash_size() > of_hashes.size {
            return Err(Error::new(ErrorKind::TooSmall, "Hash device is too small"));
        }
        let geometry = Geometry {
            size: tree.data_size(),
            block: settings.data_block,
            preferred_block: settings.data_block.max(of_data.preferred_block),
            memory_alignment: 1,
            read_only: true,
            discard: false,
            zones: None,
            tag_size: 0,
        };
        let zeros = options.ignore_zero_blocks.then(|| tree.digest(&vec![0; settings.data_block as usize]));
        let shared = Arc::new(Shared {
            tree,
            options,
            zeros,
            data,
            hashes,
            geometry,
            cache: VerifiedBlocks::default(),
            corrupted: AtomicBool::new(false),
            jobs: WaitingReads::default(),
        });
        let mut device = Self { shared, workers: Vec::new() };
        device.start()?;
        Ok(device)
    }

    /// Starts the workers. Each opens the devices itself.
    fn start(&mut self) -> Result<()> {
        let (ready, readies) = mpsc::channel();
        for _ in 0..WORKERS {
            let (shared, ready) = (self.shared.clone(), ready.clone());
            let work = move || {
                let ways = Blocking::new(&*shared.data)
                    .and_then(|data| Ok(WaitingLower { data, hashes: Blocking::new(&*shared.hashes)? }));
                let (way, result) = match ways {
                    Ok(way) => (Some(way), Ok(())),
                    Err(e) => (None, Err(e)),
                };
                // The receiver is gone when another worker has failed.
                let _ = ready.send(result);
                way.into_iter().for_each(|mut way| shared.work(&mut way));
            };
            let worker = Builder::new().name("verity".into()).spawn(work);
            self.workers.push(
                worker.map_err(|e| Error::new(ErrorKind::Memory, "cannot start a thread").with_source(e))?,
            );
        }
        let all: std::result::Result<(), _> = readies.iter().take(WORKERS).collect();
        all.map_err(|e| Error::new(ErrorKind::Memory, "cannot use the devices below").with_source(e))
    }

    /// Returns true when a corrupted block was found.
    pub fn is_corrupted(&self) -> bool {
        self.shared.corrupted.load(Ordering::Relaxed)
    }
}

impl Drop for VerityDevice {
    fn drop(&mut self) {
        self.shared.jobs.end();
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error!("{}: a thread that reads has panicked", self.shared.data.name());
            }
        }
    }
}

impl Device for VerityDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        let no_descriptor = |e| {
            let what = "no descriptor is left";
            underseal_device::Error::new(underseal_device::ErrorKind::Open, what).with_source(e)
        };
        Ok(Box::new(VerityChannel {
            lower: NonWaitingLower {
                data: self.shared.data.channel(1)?,
                hashes: self.shared.hashes.channel(1)?,
            },
            shared: self.shared.clone(),
            awaited: ReplyReceiver::new(depth).map_err(no_descriptor)?,
        }))
    }

    fn name(&self) -> &str {
        self.shared.data.name()
    }

    fn below(&self) -> Vec<&dyn Device> {
        vec![&*self.shared.data, &*self.shared.hashes]
    }

    fn tag_check(&self) -> Option<&dyn TagCheck> {
        Some(self)
    }
}

impl TagCheck for VerityDevice {
    fn verifies(&self) -> bool {
        !self.shared.options.ignore_corruption
    }

    fn forget(&self) {
        self.shared.cache.clear();
    }
}

impl Shared {
    /// Runs a worker.
    fn work(&self, lower: &mut WaitingLower) {
        while let Some(WaitingRead { slot, mut io, to }) = self.jobs.next() {
            let result = match &mut io {
                Io::Read { offset, buffer, range } => {
                    match self.read(lower, *offset, &mut buffer[range.clone()]) {
                        Ok(()) => Ok(()),
                        Err(Stop::Failed(e)) => Err(e),
                        Err(Stop::Blocked) => {
                            Err(IoKind::Read.failed(*offset, "it would wait", Errno::AGAIN))
                        }
                    }
                }
                _ => Ok(()),
            };
            to.send(Finished::of(slot, io, result));
        }
    }

    /// Reads whole blocks of data and compares them.
    fn read(&self, lower: &mut impl Lower, offset: u64, bytes: &mut [u8]) -> Step {
        let size = self.geometry.block as usize;
        let first = offset / u64::from(self.geometry.block);
        let numbers = first..first + (bytes.len() / size) as u64;
        let mut expected = Vec::with_capacity(bytes.len() / size);
        for number in numbers {
            expected.push(self.expected(lower, number)?);
        }
        let is_zeros =
            |hash: &BlockHash| self.zeros.as_ref().is_some_and(|zeros| zeros.as_ref() == hash.as_ref());
        if expected.iter().all(is_zeros) {
            bytes.fill(0);
            return Ok(());
        }
        lower.read(Side::Data, offset, bytes)?;
        for ((number, block), hash) in (first..).zip(bytes.chunks_mut(size)).zip(&expected) {
            if is_zeros(hash) {
                block.fill(0);
            } else if self.tree.digest(block).as_ref() != hash.as_ref() {
                self.found("data", number, offset)?;
            }
        }
        Ok(())
    }

    /// Returns the expected hash of a data block.
    fn expected(&self, lower: &mut impl Lower, data_block: u64) -> Step<BlockHash> {
        let mut hash = self.tree.root();
        // Verification starts at the lowest level with a verified block.
        let known = (0..self.tree.levels())
            .find_map(|level| Some((level, self.cache.get(self.tree.hash_block(level, data_block))?)));
        let from = match &known {
            Some((level, block)) => {
                hash = self.tree.entry(*level, data_block, block);
                *level
            }
            None => self.tree.levels(),
        };
        for level in (0..from).rev() {
            let number = self.tree.hash_block(level, data_block);
            let mut block = vec![0; self.tree.settings().hash_block as usize];
            let offset = number * u64::from(self.tree.settings().hash_block);
            lower.read(Side::Hashes, offset, &mut block)?;
            let block: Arc<[u8]> = block.into();
            if self.tree.digest(&block).as_ref() == hash.as_ref() {
                self.cache.put(number, &block);
            } else {
                self.found("metadata", number, data_block * u64::from(self.geometry.block))?;
            }
            hash = self.tree.entry(level, data_block, &block);
        }
        Ok(hash)
    }

    /// Handles a corrupted block: the read fails, unless corruption is ignored.
    fn found(&self, kind: &str, number: u64, offset: u64) -> Step {
        self.corrupted.store(true, Ordering::Relaxed);
        let (data, hashes) = (self.data.name(), self.hashes.name());
        let device = if kind == "data" { data } else { hashes };
        log::error!("{device}: {kind} block {number} is corrupted");
        if self.options.ignore_corruption {
            return Ok(());
        }
        let why = format!("{kind} block {number} is corrupted");
        Err(Stop::Failed(IoKind::Read.failed(offset, &why, Errno::IO)))
    }
}

/// A worker's access.
struct WaitingLower {
    data: Blocking,
    hashes: Blocking,
}

impl Lower for WaitingLower {
    fn read(&mut self, of: Side, offset: u64, bytes: &mut [u8]) -> Step {
        let way = match of {
            Side::Data => &mut self.data,
            Side::Hashes => &mut self.hashes,
        };
        Ok(way.read(offset, bytes)?)
    }
}

/// A queue's access.
struct NonWaitingLower {
    data: Box<dyn Channel>,
    hashes: Box<dyn Channel>,
}

impl Lower for NonWaitingLower {
    fn read(&mut self, of: Side, offset: u64, bytes: &mut [u8]) -> Step {
        let way = match of {
            Side::Data => &mut self.data,
            Side::Hashes => &mut self.hashes,
        };
        match way.read_now(offset, bytes) {
            Immediate::Done => Ok(()),
            Immediate::Blocked(_) => Err(Stop::Blocked),
            Immediate::Failed(e) => Err(Stop::Failed(e)),
        }
    }
}

/// A queue's channel.
struct VerityChannel {
    lower: NonWaitingLower,
    shared: Arc<Shared>,
    awaited: ReplyReceiver<Finished>,
}

impl Channel for VerityChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        match self.shared.read(&mut self.lower, offset, data) {
            Ok(()) => Immediate::Done,
            Err(Stop::Blocked) => Immediate::Blocked(0),
            Err(Stop::Failed(e)) => Immediate::Failed(e),
        }
    }

    fn write_now(&mut self, offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Failed(read_only(IoKind::Write, offset))
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Err(refused) => return Started::Finished(refused),
            Ok(io) => io,
        };
        let (kind, (offset, _)) = (io.kind(), io.extent());
        match kind {
            IoKind::Read => {}
            IoKind::Flush | IoKind::Prefetch => return Started::Finished(Finished::of(slot, io, Ok(()))),
            _ => return Started::Finished(Finished::of(slot, io, Err(read_only(kind, offset)))),
        }
        if let Some(WaitingRead { io, .. }) =
            self.shared.jobs.push(WaitingRead { slot, io, to: self.awaited.replies() })
        {
            let closed = kind.failed(offset, "the device is closed", Errno::SHUTDOWN);
            return Started::Finished(Finished::of(slot, io, Err(closed)));
        }
        self.awaited.expect(ring);
        Started::Pending
    }

    /// The channel has no operations in the ring.
    fn finish(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, _result: i32, over: &mut Vec<Finished>) {
        over.extend(self.awaited.woken(ring, token));
    }
}

fn read_only(kind: IoKind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "a verity device is read only", Errno::ROFS)
}
