//! A disk through the virtio driver of libblkio.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio_driver::{VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport};
use virtio_driver::{VirtioFeatureFlags, iovec};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::support::server::Server;
use crate::support::tools::PATIENCE;
use crate::support::volume::{Volume, text};

/// Descriptors of a ring.
pub(crate) const RING: u16 = 128;

/// Memory for data: what all requests of a test have at a time.
const MEMORY: usize = 64 << 20;

/// A volume's server with its device at `vm.sock` in the server's folder.
pub(crate) fn serve(volume: &Volume, options: &[&str]) -> (Server, PathBuf) {
    let socket = volume.image.with_extension("vm");
    let server = Server::start(volume, &[&["--vhost-user", text(&socket)], options].concat());
    (server, socket)
}

/// A driver's view of the disk.
pub(crate) struct Disk {
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    transport: Box<VirtioBlkTransport>,
    memory: MmapRegion,
}

/// A request, and the part of the memory that its data has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    Read { offset: u64, at: usize, len: usize },
    Write { offset: u64, at: usize, len: usize },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, unmap: bool },
}

impl Disk {
    pub(crate) fn connect(socket: &Path, queues: usize) -> Self {
        Self::connect_with(socket, queues, VirtioFeatureFlags::RING_EVENT_IDX)
    }

    pub(crate) fn connect_with(socket: &Path, queues: usize, ring: VirtioFeatureFlags) -> Self {
        let features = (ring | VirtioFeatureFlags::VERSION_1).bits() | VirtioBlkFeatureFlags::all().bits();
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(text(socket), features).unwrap());
        let mut queues = VirtioBlkQueue::setup_queues(transport.as_mut(), queues, RING).unwrap();
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        let file = File::from(memfd_create("data", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, MEMORY as u64).unwrap();
        let fd = file.as_raw_fd();
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), MEMORY).unwrap();
        transport.map_mem_region(memory.as_ptr() as usize, MEMORY, fd, 0).unwrap();
        Self { queues, transport, memory }
    }

    pub(crate) fn config(&self) -> VirtioBlkConfig {
        self.transport.get_config().unwrap()
    }

    pub(crate) fn has(&self, feature: VirtioBlkFeatureFlags) -> bool {
        self.transport.get_features() & feature.bits() != 0
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.as_volatile_slice().write_slice(bytes, at).unwrap();
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.as_volatile_slice().read_slice(&mut bytes, at).unwrap();
        bytes
    }

    /// Offers a request on a ring; `tag` comes back with its end.
    pub(crate) fn submit(&mut self, queue: usize, tag: usize, ask: Ask) {
        let ring = &mut self.queues[queue];
        let range = |at: usize, len: usize| {
            assert!(at + len <= MEMORY);
            iovec { iov_base: self.memory.as_ptr().wrapping_add(at).cast(), iov_len: len }
        };
        match ask {
            Ask::Read { offset, at, len } => {
                let data = range(at, len);
                // SAFETY: the range lies in the memory that the device shares, which lives as long
                // as the queue.
                unsafe { ring.readv(offset, &raw const data, 1, tag) }
            }
            Ask::Write { offset, at, len } => {
                let data = range(at, len);
                // SAFETY: as above.
                unsafe { ring.writev(offset, &raw const data, 1, tag) }
            }
            Ask::Flush => ring.flush(tag),
            Ask::Discard { offset, len } => ring.discard(offset, len, tag),
            Ask::WriteZeroes { offset, len, unmap } => ring.write_zeroes(offset, len, unmap, tag),
        }
        .unwrap();
        if ring.avail_notif_needed() {
            self.transport.get_submission_notifier(queue).notify().unwrap();
        }
    }

    /// Waits until a request of a ring has ended: its tag, and 0 or a negative error number.
    pub(crate) fn next(&mut self, queue: usize) -> (usize, i32) {
        let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        loop {
            if let Some(end) = self.queues[queue].completions().next() {
                return (end.context, end.ret);
            }
            let call = self.transport.get_completion_fd(queue);
            // SAFETY: the event descriptor is open for as long as `call` is held.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(call.as_raw_fd()) };
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            assert_ne!(poll(&mut fds, Some(&limit)).unwrap(), 0, "ring {queue} was not signalled");
            call.read().unwrap();
        }
    }

    /// Does one request after the other.
    pub(crate) fn ask(&mut self, ask: Ask) -> i32 {
        self.submit(0, 0, ask);
        self.next(0).1
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> i32 {
        self.put(0, bytes);
        self.ask(Ask::Write { offset, at: 0, len: bytes.len() })
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, i32> {
        self.put(0, &vec![0xa5; len]);
        match self.ask(Ask::Read { offset, at: 0, len }) {
            0 => Ok(self.get(0, len)),
            error => Err(error),
        }
    }
}

/// The number that a failed request ends with.
pub(crate) const EIO: i32 = -5;
pub(crate) const ENOTSUP: i32 = -95;
