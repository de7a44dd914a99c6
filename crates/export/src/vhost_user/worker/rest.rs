//! The pause of a ring, for a handover.
//!
//! While the ring is paused, this process touches nothing of it: neither the fields that the driver
//! reads, nor the count of its kicks. The server that resumes the ring, this one or another one,
//! begins with the next available head.

use std::sync::mpsc::SyncSender;

use super::Worker;
use crate::vhost_user::running::Rested;

/// The state of a ring's pause.
pub(super) enum Rest {
    /// The ring is served.
    No,
    /// The ring takes no more requests, and answers those it has taken. The sender reports the
    /// pause.
    Coming(SyncSender<Rested>),
    /// All requests taken are answered.
    Paused,
}

impl Worker {
    /// Returns true while no requests are taken.
    pub(super) fn rests(&self) -> bool {
        !matches!(self.rest, Rest::No)
    }

    /// Reports the pause once all requests taken are answered, and the driver has the answers.
    pub(super) fn lie_down(&mut self) {
        let Rest::Coming(tell) = &self.rest else { return };
        let idle = self.request_table.is_empty() && self.stalled.is_none() && self.again.is_empty();
        if idle && (self.broken || self.ready.is_empty()) {
            // A caller whose time has passed no longer listens.
            let _ = tell.send(Rested { next: self.ring.next(), broken: self.broken });
            self.rest = Rest::Paused;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use underseal_cipher::{Key, SectorSize, build};
    use underseal_datapath::Mapping;
    use underseal_device::RamDevice;
    use underseal_volume::{Segment, Volume};
    use vhost::vhost_user::message::VhostUserMemoryRegion;
    use vm_memory::{Bytes, GuestAddress};

    use crate::event::event;
    use crate::vhost_user::guest::Memory;
    use crate::vhost_user::inflight::Inflight;
    use crate::vhost_user::ring::Ring;
    use crate::vhost_user::running::{Running, Start};

    const LEN: u64 = 1 << 16;
    const AVAILABLE: GuestAddress = GuestAddress(0x1000);
    const USED: GuestAddress = GuestAddress(0x2000);
    const STATUS: GuestAddress = GuestAddress(0x3000);
    const UNSAID: u8 = 0xff;

    fn mapping() -> Arc<Mapping> {
        let spec = "cipher_null-ecb".parse().unwrap();
        let cipher = build(&spec, &Key::new(&[]).unwrap(), SectorSize::S512).unwrap();
        let volume = Volume::new(vec![Segment::stored(0, 1 << 20, 0, 0, cipher)]).unwrap();
        Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(1 << 20))).unwrap())
    }

    /// Writes a flush, whose chain begins at `head`.
    fn describe(memory: &Memory, head: u16) {
        let (ram, head) = (memory.ram(), u64::from(head));
        let header = 0x4000 + 0x100 * head;
        ram.write_obj([4_u32, 0, 0, 0], GuestAddress(header)).unwrap();
        let table = |at: u64, address: u64, len: u32, flags: u16, next: u64| {
            let links = [flags, u16::try_from(next).unwrap()];
            ram.write_obj(address, GuestAddress(16 * at)).unwrap();
            ram.write_obj(len, GuestAddress(16 * at + 8)).unwrap();
            ram.write_obj(links, GuestAddress(16 * at + 12)).unwrap();
        };
        table(head, header, 16, 1, head + 1);
        table(head + 1, STATUS.0 + head, 1, 2, 0);
        ram.write_obj(UNSAID, GuestAddress(STATUS.0 + head)).unwrap();
    }

    /// Another process may serve the ring until this one resumes it.
    #[test]
    fn a_ring_that_is_laid_down_is_not_touched_before_it_goes_on() {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, LEN).unwrap();
        let memory = Memory::of([(VhostUserMemoryRegion::new(0, LEN, 0, 0), file)]).unwrap();
        describe(&memory, 0);
        describe(&memory, 2);
        let (of, file) = Inflight::make(1, 8).unwrap();
        let inflight = Inflight::open(&of, file).unwrap();
        let theirs = || inflight.tracker(0, 8).unwrap();
        let mut other = theirs();
        assert!(other.recover(0).is_empty());
        let memory = Arc::new(memory);
        let at = [GuestAddress(0), AVAILABLE, USED];
        let start = Start {
            name: "ring".into(),
            mapping: mapping(),
            memory: memory.clone(),
            ring: Ring::new(memory.ram(), 8, at, false).unwrap(),
            base: 0,
            tracker: inflight.tracker(0, 8),
            kick: event().unwrap().into(),
            call: None,
            error: None,
            serial: [0; _],
            durable: false,
            rests: true,
        };
        // The other process has a request in flight.
        other.take(0);
        let running = Running::start(start).unwrap();
        let used = || memory.ram().read_obj::<u16>(GuestAddress(USED.0 + 2)).unwrap();
        let status = |head| memory.ram().read_obj::<u8>(GuestAddress(STATUS.0 + head)).unwrap();
        sleep(Duration::from_millis(50));
        assert!(theirs().is_in_flight(0), "who goes on with it is asked in vain");
        assert_eq!((used(), status(0)), (0, UNSAID), "nothing is answered");
        // The other process answers it, and is killed with the next one in flight, which was
        // offered second.
        other.put(0);
        memory.ram().write_obj(1_u16, GuestAddress(USED.0 + 2)).unwrap();
        other.published(1);
        other.take(2);
        memory.ram().write_obj([0_u16, 2, 0, 2], AVAILABLE).unwrap();
        running.go_on();
        let end = Instant::now() + Duration::from_secs(20);
        while used() != 2 && Instant::now() < end {
            sleep(Duration::from_millis(1));
        }
        assert_eq!((used(), status(0), status(2)), (2, UNSAID, 0), "the one that was left is answered once");
        assert!(!theirs().is_in_flight(2));
        running.ask_to_end(false);
        assert_eq!(running.join(), Some(2));
    }
}
