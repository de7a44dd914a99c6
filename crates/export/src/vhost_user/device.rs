//! The device as the front end configures it: features, memory, and rings that start and stop.
//!
//! A ring runs when it has an address, a kick and guest memory, and is enabled. Most messages stop
//! the ring first, which answers the requests in flight; only the call and error descriptors and
//! the memory change while the ring runs.

mod carry;

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use underseal_datapath::Mapping;
use underseal_device::Signal;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vm_memory::{Address, GuestAddress};

use super::carried::Said;
use super::config::{self, EVENT_INDEX, FLUSH, PROTOCOL_FEATURES};
use super::guest::{Memory, REGIONS};
use super::inflight::{Inflight, process_number};
use super::request::SERIAL;
use super::ring::{LARGEST, Ring, lengths};
use super::running::{Running, Start};
use super::{broken, refused};

/// The device of one front end.
pub(super) struct Device {
    mapping: Arc<Mapping>,
    serial: [u8; SERIAL],
    features: u64,
    said: Said,
    memory: Arc<Memory>,
    inflight: Option<Inflight>,
    /// The driver has been served by a process that was killed with acknowledged writes in its
    /// memory.
    outlived: bool,
    queues: Box<[Virtqueue]>,
    /// True when the server is stopping: no ring is started any more.
    closing: bool,
}

/// The state of a ring.
#[derive(Default)]
struct Virtqueue {
    size: u16,
    /// The addresses of its table, its available and its used ring, in the front end.
    at: Option<[u64; 3]>,
    /// The same addresses in the guest, as of the last start.
    lies: Option<[u64; 3]>,
    base: u16,
    kick: Option<File>,
    call: Option<File>,
    error: Option<File>,
    enabled: bool,
    /// True when the ring was malformed in the old server of a handover: it is not started again
    /// until the front end sets its addresses again.
    broken: bool,
    /// The driver has used the ring before, and goes on with it after its server was killed.
    goes_on: bool,
    running: Option<Running>,
}

impl Device {
    pub(super) fn new(mapping: Arc<Mapping>, queues: u16, serial: [u8; SERIAL]) -> Self {
        let queues = (0..queues).map(|_| Virtqueue::default()).collect();
        let (said, memory) = (Said::default(), Arc::default());
        Self {
            mapping,
            serial,
            features: 0,
            said,
            memory,
            inflight: None,
            outlived: false,
            queues,
            closing: false,
        }
    }

    /// Returns true when the front end has negotiated this feature.
    pub(super) fn has(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.said.protocol & feature.bits() != 0
    }

    /// Ends all rings; requests in flight are answered. `gone` means that the front end has
    /// disconnected.
    pub(super) fn end(&mut self, gone: bool) {
        self.closing = true;
        self.stop_all(gone);
        self.settle();
    }

    /// Flushes acknowledged writes that would end with this process, for a front end that connects
    /// to another one.
    fn settle(&self) {
        let Some(inflight) = self.inflight.as_ref().filter(|_| self.mapping.holds_acknowledged()) else {
            return;
        };
        match self.mapping.flush() {
            Ok(()) if !self.mapping.is_lost() => {
                inflight.set_holder(None);
            }
            Ok(()) => {}
            Err(e) => log::error!("the front end's last writes: {e}"),
        }
    }

    /// Notes that a ring starts. Its driver may have used it with a server that was killed.
    fn follows(&mut self, index: usize, is_new: bool) {
        let queue = &mut self.queues[index];
        if !is_new && self.outlived && self.features & FLUSH != 0 {
            queue.goes_on = true;
            self.mapping.lose("the vhost-user server before was killed");
        } else if is_new && queue.goes_on {
            self.starts_anew();
        }
    }

    /// Notes that the driver starts anew.
    fn starts_anew(&mut self) {
        if std::mem::take(&mut self.outlived) {
            if let Some(inflight) = &self.inflight {
                inflight.set_holder(None);
                inflight.set_holder(Some(process_number()));
            }
            self.queues.iter_mut().for_each(|queue| queue.goes_on = false);
            self.mapping.start_anew();
        }
    }

    /// Stops all rings at once, since each may have to wait for the lower device.
    fn stop_all(&mut self, gone: bool) {
        self.queues.iter().filter_map(|queue| queue.running.as_ref()).for_each(|r| r.ask_to_end(gone));
        self.queues.iter_mut().for_each(Virtqueue::stop);
    }

    fn queue(&mut self, index: u32) -> Result<&mut Virtqueue> {
        let count = self.queues.len();
        let queue = usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index));
        queue.ok_or_else(|| broken(format!("ring {index}, where there are {count} (--vhost-user-queues)")))
    }

    /// Stops a ring, changes it, and starts it again if it should run.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Virtqueue) -> Result<()>) -> Result<()> {
        let queue = self.queue(index)?;
        queue.stop();
        change(queue)?;
        self.start(index as usize)
    }

    /// Starts a ring if it should run and does not.
    fn start(&mut self, index: usize) -> Result<()> {
        self.start_at(index, false)
    }

    /// Starts a ring as `start` does; with `rests` it is paused until it is resumed.
    fn start_at(&mut self, index: usize, rests: bool) -> Result<()> {
        let queue = &mut self.queues[index];
        let (Some(at), true) = (queue.at, queue.kick.is_some()) else { return Ok(()) };
        if !queue.enabled || queue.running.is_some() || queue.broken || self.closing {
            return Ok(());
        }
        let name = format!("vhost-user-{index}");
        // The ring of an old server keeps its guest addresses, even if the front end's addresses
        // have changed.
        let at: [GuestAddress; 3] = if let (true, Some(lies)) = (rests, queue.lies) {
            lies.map(GuestAddress)
        } else {
            let places = at.iter().zip(lengths(queue.size));
            let places: Option<Vec<_>> =
                places.map(|(&front, len)| self.memory.guest_address(front, len)).collect();
            let places = places.and_then(|places| places.try_into().ok());
            places.ok_or_else(|| broken(format!("{name} is not in the guest memory that is shared")))?
        };
        queue.lies = Some(at.map(|place| place.raw_value()));
        let ring = Ring::new(self.memory.ram(), queue.size, at, self.features & EVENT_INDEX != 0)
            .map_err(|e| broken(format!("{name}: {e}")))?;
        let is_new = queue.base == 0
            && ring.is_unused(self.memory.ram()).map_err(|e| broken(format!("{name}: {e}")))?;
        self.follows(index, is_new);
        let queue = &mut self.queues[index];
        let Some(kick) = &queue.kick else { return Ok(()) };
        let tracker = self.inflight.as_ref().and_then(|inflight| inflight.tracker(index, queue.size));
        let no_start = |e| broken(format!("ring {index} cannot be started: {e}"));
        let start = Start {
            name,
            mapping: self.mapping.clone(),
            memory: self.memory.clone(),
            ring,
            base: queue.base,
            tracker,
            kick: kick.try_clone().map_err(no_start)?,
            call: signal(queue.call.as_ref())?,
            error: signal(queue.error.as_ref())?,
            serial: self.serial,
            durable: self.features & FLUSH == 0,
            rests,
        };
        queue.running = Some(Running::start(start).map_err(no_start)?);
        Ok(())
    }

    /// Replaces the memory of all rings.
    fn set_memory(&mut self, memory: Memory) -> Result<()> {
        self.memory = Arc::new(memory);
        for queue in &self.queues {
            queue.running.iter().for_each(|running| running.set_memory(self.memory.clone()));
        }
        Ok(())
    }
}

impl Virtqueue {
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.ask_to_end(false);
            // A thread that panicked has been logged.
            self.base = running.join().unwrap_or(self.base);
        }
        self.broken = false;
    }
}

/// Makes a kick non-blocking, so that reading it never blocks a thread. (Call descriptors are not
/// changed: the front end may wait for them, and [`Signal`] does not block.)
fn not_blocking(file: &File) -> Result<()> {
    let failed = |e| broken(format!("an event descriptor: {e}"));
    // Files of FUSE make a reader wait all the same. Only anonymous files have no type.
    let mode = rustix::fs::fstat(file).map_err(failed)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Unknown {
        return Err(broken("a kick is no eventfd"));
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(failed)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(failed)
}

fn signal(file: Option<&File>) -> Result<Option<Signal>> {
    file.map(Signal::new).transpose().map_err(|e| broken(format!("an event descriptor: {e}")))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all(false);
        for queue in &mut self.queues {
            *queue = Virtqueue::default();
        }
        self.features = 0;
        self.starts_anew();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.said.asked = true;
        Ok(config::features(&self.mapping))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !config::features(&self.mapping);
        if unknown != 0 {
            return Err(broken(format!("features {unknown:#x}, which were not offered")));
        }
        self.said.features = features;
        if features != self.features {
            self.stop_all(false);
            self.features = features;
        }
        // Without the feature for enabling rings, all rings run.
        let enabled = features & PROTOCOL_FEATURES == 0;
        for index in 0..self.queues.len() {
            self.queues[index].enabled |= enabled;
            self.start(index)?;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let memory = Memory::of(regions.iter().copied().zip(files))?;
        self.set_memory(memory).map(|()| None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let memory = self.memory.with(region, file)?;
        self.set_memory(memory).map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(region)?;
        self.set_memory(memory)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= LARGEST);
        let size = size.ok_or_else(|| {
            broken(format!("a ring of {num} descriptors; powers of two up to {LARGEST} are served"))
        })?;
        self.change(index, |queue| {
            queue.size = size;
            Ok(())
        })
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(index, |queue| {
            queue.at = Some([descriptor, available, used]);
            Ok(())
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| broken(format!("a ring that begins at {base}")))?;
        self.change(index, |queue| {
            queue.base = base;
            Ok(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        queue.stop();
        // The ring starts again when the next kick descriptor arrives.
        (queue.kick, queue.call) = (None, None);
        Ok(VhostUserVringState::new(index, queue.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick =
            fd.ok_or_else(|| broken(format!("ring {index} is to be polled; rings are served that kick")))?;
        not_blocking(&kick)?;
        self.change(index.into(), |queue| {
            queue.kick = Some(kick);
            Ok(())
        })
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        if let Some(running) = &queue.running {
            running.set_call(signal(fd.as_ref())?);
        }
        queue.call = fd;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        if let Some(running) = &queue.running {
            running.set_error(signal(fd.as_ref())?);
        }
        queue.error = fd;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        type Features = VhostUserProtocolFeatures;
        Ok(Features::MQ
            | Features::REPLY_ACK
            | Features::CONFIG
            | Features::INFLIGHT_SHMFD
            | Features::RESET_DEVICE
            | Features::BACKEND_REQ
            | Features::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.get_protocol_features()?.bits();
        if unknown != 0 {
            return Err(broken(format!("protocol features {unknown:#x}, which were not offered")));
        }
        self.said.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.queue(index)?.enabled == enable {
            return Ok(());
        }
        self.change(index, |queue| {
            queue.enabled = enable;
            Ok(())
        })
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let queues = u16::try_from(self.queues.len()).unwrap_or(u16::MAX);
        config::read(&self.mapping, queues, offset, size)
            .ok_or_else(|| broken(format!("configuration bytes {offset} + {size}")))
    }

    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // The only writable field, writeback, is not offered.
        Err(broken("a write to the configuration, where nothing can be written"))
    }

    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (of, file) = Inflight::make(inflight.num_queues, inflight.queue_size)?;
        Ok((of, file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let inflight = Inflight::open(inflight, file)?;
        self.stop_all(false);
        let holder = self.mapping.holds_acknowledged().then(process_number);
        self.outlived = inflight.set_holder(holder);
        if !self.outlived {
            // Another driver, or one that has lost nothing.
            self.mapping.start_anew();
        }
        self.inflight = Some(inflight);
        (0..self.queues.len()).try_for_each(|index| self.start(index))
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        Err(refused())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(refused())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(refused())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(refused())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(refused())
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(refused())
    }
}
