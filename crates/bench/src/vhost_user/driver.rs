//! The client: libblkio's virtio driver with one ring, which waits for signals like a guest.

#![expect(unsafe_code, reason = "libblkio's C functions")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags, iovec,
};
use vm_memory::{FileOffset, MmapRegion};

use super::{BenchError, VhostUserOptions};
use crate::fio::FioResult;
use crate::place::SocketServer;
use crate::rounds::BenchWorkload;

/// The number of descriptors in the ring: three a request.
const RING: u16 = 256;

/// How long a server may leave a request without an answer.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// A stream of requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct VhostUserWorkload {
    writes: bool,
    block: usize,
    pub(super) depth: usize,
}

const fn workload(writes: bool, kib: usize, depth: usize) -> VhostUserWorkload {
    VhostUserWorkload { writes, block: kib << 10, depth }
}

pub(super) const WORKLOADS: [VhostUserWorkload; 8] = [
    workload(false, 4, 1),
    workload(true, 4, 1),
    workload(false, 4, 32),
    workload(true, 4, 32),
    workload(false, 64, 8),
    workload(true, 64, 8),
    workload(false, 1024, 4),
    workload(true, 1024, 4),
];

impl BenchWorkload for VhostUserWorkload {
    /// `4k randread depth 32`
    fn name(&self) -> String {
        let block = if self.block >> 20 > 0 {
            format!("{}M", self.block >> 20)
        } else {
            format!("{}k", self.block >> 10)
        };
        format!("{block} rand{} depth {}", if self.writes { "write" } else { "read" }, self.depth)
    }
}

/// Writes every byte once, so that no server reads holes.
pub(super) fn fill(server: &SocketServer, size: u64) -> Result<(), BenchError> {
    let workload = workload(true, 1024, 4);
    let last = size / workload.block as u64;
    let mut client = Client::connect(server, workload)?;
    let mut next = 0..last;
    client.keep_busy(workload, || next.next()).map(drop)
}

/// Makes requests at random places for a while.
pub(super) fn run(
    server: &SocketServer,
    workload: VhostUserWorkload,
    options: &VhostUserOptions,
) -> Result<FioResult, BenchError> {
    let mut client = Client::connect(server, workload)?;
    let blocks = options.size / workload.block as u64;
    let mut random = fastrand::Rng::new();
    let before = server.cpu_time()?;
    let started = Instant::now();
    let mut latencies = client
        .keep_busy(workload, || (started.elapsed() < options.turns.runtime).then(|| random.u64(..blocks)))?;
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = server.cpu_time()?.saturating_sub(before);
    latencies.sort_unstable();
    let (count, last) = (latencies.len() as f64, latencies.len().saturating_sub(1));
    let at = |thousandths: usize| {
        latencies.get(last * thousandths / 1000).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    };
    Ok(FioResult {
        iops: count / elapsed,
        mb_per_s: count * workload.block as f64 / elapsed / 1e6,
        p50_us: at(500),
        p99_us: at(990),
        p999_us: at(999),
        server_cpu_us: cpu.as_secs_f64() * 1e6 / count,
    })
}

/// A driver and the memory that it shares.
struct Client {
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    transport: Box<VirtioBlkTransport>,
    memory: MmapRegion,
    name: &'static str,
}

impl Client {
    fn connect(server: &SocketServer, workload: VhostUserWorkload) -> Result<Self, BenchError> {
        let failed = |e| BenchError::because(format!("{}: the driver cannot connect", server.name), e);
        let connect = || -> std::io::Result<Self> {
            let ring = VirtioFeatureFlags::RING_EVENT_IDX | VirtioFeatureFlags::VERSION_1;
            let features = ring.bits() | VirtioBlkFeatureFlags::all().bits();
            let socket = server.socket.to_str().ok_or(std::io::ErrorKind::InvalidInput)?;
            let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(socket, features)?);
            let mut queues = VirtioBlkQueue::setup_queues(transport.as_mut(), 1, RING)?;
            queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
            let len = workload.block * workload.depth;
            let file = File::from(memfd_create("bench", MemfdFlags::CLOEXEC)?);
            ftruncate(&file, len as u64)?;
            let fd = file.as_raw_fd();
            let memory =
                MmapRegion::from_file(FileOffset::new(file, 0), len).map_err(std::io::Error::other)?;
            transport.map_mem_region(memory.as_ptr() as usize, len, fd, 0)?;
            Ok(Self { queues, transport, memory, name: server.name })
        };
        connect().map_err(failed)
    }

    /// Keeps `depth` requests in flight while `place` names blocks for them; returns their
    /// latencies.
    fn keep_busy(
        &mut self,
        workload: VhostUserWorkload,
        mut place: impl FnMut() -> Option<u64>,
    ) -> Result<Vec<Duration>, BenchError> {
        let name = self.name;
        let failed = |e: std::io::Error| BenchError::because(format!("{name}: a request failed"), e);
        let mut latencies = Vec::with_capacity(1 << 20);
        let mut since = vec![Instant::now(); workload.depth];
        let mut in_flight = 0;
        for (slot, since) in since.iter_mut().enumerate() {
            let Some(block) = place() else { break };
            *since = Instant::now();
            self.submit(workload, slot, block).map_err(failed)?;
            in_flight += 1;
        }
        self.kick().map_err(failed)?;
        let mut done = Vec::with_capacity(workload.depth);
        while in_flight > 0 {
            done.extend(self.queues[0].completions().map(|end| (end.context, end.ret)));
            if done.is_empty() {
                self.wait().map_err(failed)?;
                continue;
            }
            let now = Instant::now();
            for (slot, error) in done.drain(..) {
                if error != 0 {
                    return Err(failed(std::io::Error::from_raw_os_error(-error)));
                }
                latencies.push(now - since[slot]);
                in_flight -= 1;
                if let Some(block) = place() {
                    since[slot] = now;
                    self.submit(workload, slot, block).map_err(failed)?;
                    in_flight += 1;
                }
            }
            self.kick().map_err(failed)?;
        }
        Ok(latencies)
    }

    fn submit(&mut self, workload: VhostUserWorkload, slot: usize, block: u64) -> std::io::Result<()> {
        let offset = block * workload.block as u64;
        let at = self.memory.as_ptr().wrapping_add(slot * workload.block);
        let data = iovec { iov_base: at.cast(), iov_len: workload.block };
        let queue = &mut self.queues[0];
        if workload.writes {
            // SAFETY: each slot's memory lies in the mapping, which lives as long as the queue.
            unsafe { queue.writev(offset, &raw const data, 1, slot) }
        } else {
            // SAFETY: as above.
            unsafe { queue.readv(offset, &raw const data, 1, slot) }
        }
    }

    fn kick(&mut self) -> std::io::Result<()> {
        if self.queues[0].avail_notif_needed() {
            self.transport.get_submission_notifier(0).notify()?;
        }
        Ok(())
    }

    fn wait(&self) -> std::io::Result<()> {
        let call = self.transport.get_completion_fd(0);
        // SAFETY: the event descriptor is open for as long as `call` is held.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(call.as_raw_fd()) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        if poll(&mut fds, Some(&PATIENCE))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        call.read().map(drop)
    }
}
