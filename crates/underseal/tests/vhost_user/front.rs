//! A front end for cases that a real one cannot make: it lays chains by hand, and it keeps its
//! requests in flight when the server ends.

use std::fs::File;
use std::num::Wrapping;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures as Protocol};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::support::tools::{PATIENCE, wait_until, within};

/// Descriptors of its ring.
pub(crate) const RING: u16 = 64;

/// Where the guest has the memory; the front end has it elsewhere.
pub(crate) const GUEST: u64 = 0x4000_0000;
pub(crate) const MEMORY: usize = 32 << 20;

/// Offsets in the guest's memory.
pub(crate) const TABLE: usize = 0;
pub(crate) const AVAILABLE: usize = 0x2000;
pub(crate) const USED: usize = 0x4000;
const HEADERS: usize = 0x8000;
pub(crate) const SPARE: usize = 0xc000;
const DATA: usize = 0x10_0000;

/// Flags of a descriptor.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Kinds of requests.
pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;

/// Requests of `ask` that may be in flight, each with three descriptors and memory for data.
pub(crate) const SLOTS: usize = 16;
pub(crate) const SLOT: usize = 1 << 20;

const EVENT_INDEX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const BLOCK_FLUSH: u64 = 1 << 9;

pub(crate) struct Front {
    pub(crate) link: Frontend,
    pub(crate) memory: MmapRegion,
    file: File,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) error: EventFd,
    inflight: (VhostUserInflight, File),
    available: Wrapping<u16>,
    seen: Wrapping<u16>,
}

impl Front {
    /// Connects and starts ring 0.
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::connect_with(socket, EventFd::new(EFD_NONBLOCK).unwrap())
    }

    /// As `connect`, with `call` for signals.
    pub(crate) fn connect_with(socket: &Path, call: EventFd) -> Self {
        Self::connect_to(socket, call, EVENT_INDEX)
    }

    /// As `connect`, without event indices: a flag asks for kicks.
    pub(crate) fn connect_with_flags(socket: &Path) -> Self {
        Self::connect_to(socket, EventFd::new(EFD_NONBLOCK).unwrap(), 0)
    }

    fn connect_to(socket: &Path, call: EventFd, event_index: u64) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, MEMORY as u64).unwrap();
        let memory = MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), MEMORY).unwrap();
        let mut link = negotiate(socket, event_index);
        let wanted = VhostUserInflight::new(0, 0, 1, RING);
        let inflight = link.get_inflight_fd(&wanted).unwrap();
        let [kick, error] = std::array::from_fn(|_| EventFd::new(EFD_NONBLOCK).unwrap());
        let (available, seen) = (Wrapping(0), Wrapping(0));
        let mut front = Self { link, memory, file, kick, call, error, inflight, available, seen };
        front.start();
        front
    }

    /// Goes on where it was, with a server that may be another one. What is in flight is handed
    /// over.
    pub(crate) fn reconnect(&mut self, socket: &Path) {
        self.link = negotiate(socket, EVENT_INDEX);
        self.start();
    }

    fn start(&mut self) {
        let (of, file) = &self.inflight;
        self.link.set_inflight_fd(of, file.as_raw_fd()).unwrap();
        self.share_memory().unwrap();
        // A front end whose server was killed only knows the used index.
        let used = self.u16_at(USED + 2);
        self.start_ring(used).unwrap();
    }

    pub(crate) fn share_memory(&self) -> vhost::Result<()> {
        self.link.set_mem_table(&[self.region()]).map(|_| ())
    }

    pub(crate) fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY as u64,
            userspace_addr: self.memory.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub(crate) fn start_ring(&mut self, base: u16) -> vhost::Result<()> {
        let front = self.memory.as_ptr() as u64;
        let config = VringConfigData {
            queue_max_size: RING,
            queue_size: RING,
            flags: 0,
            desc_table_addr: front + TABLE as u64,
            used_ring_addr: front + USED as u64,
            avail_ring_addr: front + AVAILABLE as u64,
            log_addr: None,
        };
        self.link.set_vring_num(0, RING)?;
        self.link.set_vring_base(0, base)?;
        self.link.set_vring_addr(0, &config)?;
        self.link.set_vring_kick(0, &self.kick)?;
        self.link.set_vring_call(0, &self.call)?;
        self.link.set_vring_err(0, &self.error)?;
        self.link.set_vring_enable(0, true)
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.as_volatile_slice().write_slice(bytes, at).unwrap();
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.as_volatile_slice().read_slice(&mut bytes, at).unwrap();
        bytes
    }

    pub(crate) fn u16_at(&self, at: usize) -> u16 {
        self.memory.as_volatile_slice().load(at, Ordering::Acquire).unwrap()
    }

    pub(crate) fn store_u16(&self, at: usize, value: u16) {
        self.memory.as_volatile_slice().store(value, at, Ordering::Release).unwrap();
    }

    /// Cuts the memory short under the server's hands, and from then on this front end's own.
    pub(crate) fn cut(&self, len: usize) {
        ftruncate(&self.file, len as u64).unwrap();
    }

    /// Writes a descriptor of the ring's table.
    pub(crate) fn describe(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.put(TABLE + 16 * usize::from(index), &descriptor(at, len, flags, next));
    }

    /// Offers the chain that begins at `head`, and kicks.
    pub(crate) fn offer(&mut self, head: u16) {
        self.offer_quietly(head);
        self.kick.write(1).unwrap();
    }

    pub(crate) fn offer_quietly(&mut self, head: u16) {
        let slot = usize::from(self.available.0 % RING);
        self.store_u16(AVAILABLE + 4 + 2 * slot, head);
        self.available += 1;
        // The event index asks for a signal for each answer.
        self.store_u16(AVAILABLE + 4 + 2 * usize::from(RING), self.seen.0);
        fence(Ordering::SeqCst);
        self.store_u16(AVAILABLE + 2, self.available.0);
    }

    /// A chain that was given back: its head, and how many bytes were written to it.
    pub(crate) fn take(&mut self) -> Option<(u16, u32)> {
        if self.u16_at(USED + 2) == self.seen.0 {
            return None;
        }
        let slot = usize::from(self.seen.0 % RING);
        let element = self.get(USED + 4 + 8 * slot, 8);
        self.seen += 1;
        let number = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        Some((number(0).try_into().unwrap(), number(4)))
    }

    pub(crate) fn next(&mut self) -> (u16, u32) {
        let mut got = None;
        wait_until("a chain is given back", PATIENCE, || {
            got = self.take();
            got.is_some()
        });
        got.unwrap()
    }

    /// Whether the server says that it has stopped the ring, and has nothing to say besides.
    pub(crate) fn is_told_of_an_error(&mut self) -> bool {
        within(PATIENCE, || self.error.read().is_ok()) && self.take().is_none()
    }

    /// Offers a request of the usual form: a header, data, a status.
    pub(crate) fn ask(&mut self, slot: usize, kind: u32, sector: u64, len: usize) {
        let head = self.lay(slot, kind, sector, len);
        self.offer(head);
    }

    /// Lays it out, and no more: its head.
    pub(crate) fn lay(&self, slot: usize, kind: u32, sector: u64, len: usize) -> u16 {
        let (header, status, data) = (HEADERS + 32 * slot, HEADERS + 32 * slot + 16, data(slot));
        self.put(header, &request(kind, sector));
        self.put(status, &[0xff]);
        let head = u16::try_from(3 * slot).unwrap();
        let data_flags = if kind == OUT { NEXT } else { NEXT | WRITE };
        self.describe(head, guest(header), 16, NEXT, if len == 0 { head + 2 } else { head + 1 });
        self.describe(head + 1, guest(data), u32::try_from(len).unwrap(), data_flags, head + 2);
        self.describe(head + 2, guest(status), 1, WRITE, 0);
        head
    }

    /// The status that a request of `ask` ended with.
    pub(crate) fn status(&self, slot: usize) -> u8 {
        self.get(HEADERS + 32 * slot + 16, 1)[0]
    }

    /// Asks and waits: the status.
    pub(crate) fn does(&mut self, kind: u32, sector: u64, len: usize) -> u8 {
        self.ask(0, kind, sector, len);
        assert_eq!(self.next().0, 0);
        self.status(0)
    }
}

fn negotiate(socket: &Path, event_index: u64) -> Frontend {
    let mut link = Frontend::connect(socket, 1).unwrap();
    link.set_owner().unwrap();
    let offered = link.get_features().unwrap();
    let wanted = VERSION_1 | PROTOCOL_FEATURES | event_index | INDIRECT_DESCRIPTORS | BLOCK_FLUSH;
    assert_eq!(offered & wanted, wanted, "{offered:#x}");
    let protocol = link.get_protocol_features().unwrap();
    let wanted_of_it = Protocol::REPLY_ACK
        | Protocol::CONFIG
        | Protocol::INFLIGHT_SHMFD
        | Protocol::MQ
        | Protocol::BACKEND_REQ;
    assert!(protocol.contains(wanted_of_it), "{protocol:?}");
    link.set_protocol_features(wanted_of_it).unwrap();
    link.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    link.set_features(wanted).unwrap();
    link
}

/// The guest's address of a place in the memory.
pub(crate) fn guest(at: usize) -> u64 {
    GUEST + at as u64
}

/// Where a slot's data is.
pub(crate) fn data(slot: usize) -> usize {
    DATA + slot * SLOT
}

pub(crate) fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
}

/// A request's header.
pub(crate) fn request(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}
