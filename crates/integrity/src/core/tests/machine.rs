//! Disks in memory that record writes in order.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Mutex, RwLock};

use rustix::io::Errno;
use underseal_device::{Error, IoKind};

use super::super::lower::{LowerDisks, Side, StepResult, Stop};
use super::TUPLE;
use crate::Disk;

#[derive(Clone)]
pub(super) enum Event {
    Write {
        disk: usize,
        at: usize,
        bytes: Vec<u8>,
        /// On an inline device: the offset and bytes of the blocks' tuples. Each block is there
        /// with its tuple, or neither is.
        tuples: Option<(usize, Vec<u8>)>,
    },
    /// Writes to this range are on the medium.
    Sync { disk: usize, range: Range<usize> },
}

/// A data disk and a second one: for the metadata, or the tuples of an inline device.
pub(super) struct Machine {
    images: Vec<RwLock<Vec<u8>>>,
    events: Mutex<Option<Vec<Event>>>,
    has_meta: bool,
    block: u32,
    /// The number of writes and syncs that still succeed; negative: all do.
    lives: AtomicI64,
}

impl Machine {
    pub(super) fn new(images: Vec<Vec<u8>>, has_meta: bool, block: u32) -> Self {
        let images = images.into_iter().map(RwLock::new).collect();
        Self { images, events: Mutex::new(Some(Vec::new())), has_meta, block, lives: AtomicI64::new(-1) }
    }

    /// The same disks with these bytes.
    pub(super) fn after(&self, images: &[Vec<u8>]) -> Self {
        Self::new(images.to_vec(), self.has_meta, self.block)
    }

    pub(super) fn images(&self) -> Vec<Vec<u8>> {
        self.images.iter().map(|image| image.read().unwrap().clone()).collect()
    }

    pub(super) fn change(&self, disk: usize, at: usize, change: impl FnOnce(&mut u8)) {
        change(&mut self.images[disk].write().unwrap()[at]);
    }

    pub(super) fn disk(&self, disk: usize) -> Part<'_> {
        Part { machine: self, disk }
    }

    pub(super) fn way(&self) -> MachineDisks<'_> {
        MachineDisks { machine: self, waits: true }
    }

    /// Access that may not wait, and never has to.
    pub(super) fn way_at_once(&self) -> MachineDisks<'_> {
        MachineDisks { machine: self, waits: false }
    }

    /// Stops the recording.
    pub(super) fn do_not_record(&self) {
        *self.events.lock().unwrap() = None;
    }

    pub(super) fn forget(&self) {
        *self.events.lock().unwrap() = Some(Vec::new());
    }

    pub(super) fn count(&self) -> usize {
        self.events.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone().unwrap_or_default()
    }

    /// Makes all changes fail after `lives` more.
    pub(super) fn break_after(&self, lives: i64) {
        self.lives.store(lives, SeqCst);
    }

    fn live(&self) -> io::Result<()> {
        match self.lives.load(SeqCst) {
            lives if lives < 0 => Ok(()),
            0 => Err(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error())),
            lives => {
                self.lives.store(lives - 1, SeqCst);
                Ok(())
            }
        }
    }

    fn write(&self, disk: usize, at: u64, bytes: &[u8], tuples: Option<(u64, &[u8])>) -> io::Result<()> {
        self.live()?;
        let at = at as usize;
        let tuples = tuples.map(|(at, bytes)| (at as usize, bytes));
        // Events are in the order of the writes.
        let mut events = self.events.lock().unwrap();
        self.images[disk].write().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        if let Some((at, bytes)) = tuples {
            self.images[1].write().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        }
        if let Some(events) = &mut *events {
            let tuples = tuples.map(|(at, bytes)| (at, bytes.to_vec()));
            events.push(Event::Write { disk, at, bytes: bytes.to_vec(), tuples });
        }
        Ok(())
    }

    fn sync(&self, disk: usize, range: Range<usize>) -> io::Result<()> {
        self.live()?;
        if let Some(events) = &mut *self.events.lock().unwrap() {
            events.push(Event::Sync { disk, range });
        }
        Ok(())
    }

    fn read(&self, disk: usize, at: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.images[disk].read().unwrap()[at as usize..at as usize + bytes.len()]);
    }
}

pub(super) struct Part<'m> {
    machine: &'m Machine,
    disk: usize,
}

impl Disk for Part<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.machine.images[self.disk].read().unwrap().len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.machine.read(self.disk, offset, bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.machine.write(self.disk, offset, bytes, None)
    }

    fn sync(&self) -> io::Result<()> {
        self.machine.sync(self.disk, 0..usize::MAX)
    }
}

pub(super) struct MachineDisks<'m> {
    machine: &'m Machine,
    waits: bool,
}

impl MachineDisks<'_> {
    fn disk(&self, side: Side) -> usize {
        usize::from(side == Side::Meta && self.machine.has_meta)
    }

    fn tuples(&self, offset: u64) -> u64 {
        offset / u64::from(self.machine.block) * TUPLE as u64
    }

    fn may(&self) -> StepResult {
        if self.waits { Ok(()) } else { Err(Stop::Blocked(0)) }
    }
}

fn failed(e: io::Error) -> Stop {
    let errno = e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    let error: Error = IoKind::Write.failed(0, "the disk is broken", errno);
    error.into()
}

impl LowerDisks for MachineDisks<'_> {
    fn may_wait(&self) -> bool {
        self.waits
    }

    fn read(&mut self, of: Side, offset: u64, data: &mut [u8]) -> StepResult {
        self.machine.read(self.disk(of), offset, data);
        Ok(())
    }

    fn write(&mut self, to: Side, offset: u64, data: &[u8], durable: bool) -> StepResult {
        let disk = self.disk(to);
        if durable {
            self.may()?;
        }
        self.machine.write(disk, offset, data, None).map_err(failed)?;
        let at = offset as usize;
        if durable { self.machine.sync(disk, at..at + data.len()).map_err(failed) } else { Ok(()) }
    }

    fn flush(&mut self, of: Side) -> StepResult {
        self.may()?;
        self.machine.sync(self.disk(of), 0..usize::MAX).map_err(failed)
    }

    fn flush_all(&mut self) -> StepResult {
        self.may()?;
        (0..2).try_for_each(|disk| self.machine.sync(disk, 0..usize::MAX)).map_err(failed)
    }

    /// Overwrites discarded bytes with a pattern.
    fn discard(&mut self, offset: u64, len: u64) -> StepResult {
        self.may()?;
        self.machine.write(0, offset, &vec![0xdd; len as usize], None).map_err(failed)
    }

    fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> StepResult {
        self.machine.read(0, offset, data);
        self.machine.read(1, self.tuples(offset), tuples);
        Ok(())
    }

    fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8]) -> StepResult {
        let beside = (self.tuples(offset), tuples);
        self.machine.write(0, offset, data, Some(beside)).map_err(failed)
    }
}
