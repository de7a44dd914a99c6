//! Three kinds of access to the lower devices: waiting, non-waiting, and for the opening.

use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use underseal_device::{Blocking, Channel, Device, Immediate, IoKind};

use crate::core::{LowerDisks, Side, StepResult, Stop};
use crate::{Disk, Error, ErrorKind, Result};

/// A device during the opening of a volume.
pub(super) struct DeviceDisk {
    way: Mutex<Blocking>,
    size: u64,
    block: u64,
    read_only: bool,
}

impl DeviceDisk {
    pub(super) fn new(device: &dyn Device) -> Result<Self> {
        let geometry = device.geometry();
        Ok(Self {
            way: Blocking::new(device).map_err(no_way)?.into(),
            size: geometry.size,
            block: u64::from(geometry.block).max(1),
            read_only: geometry.read_only,
        })
    }

    /// The whole device blocks around these bytes: first byte, memory, and the bytes' offset in it.
    /// `None` where the bytes are whole blocks.
    fn around(&self, offset: u64, len: usize) -> io::Result<Option<(u64, Vec<u8>, usize)>> {
        let start = offset / self.block * self.block;
        let end = offset.checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(self.block));
        let end = end.filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        if start == offset && end - start == len as u64 {
            return Ok(None);
        }
        let whole = usize::try_from(end - start).map_err(io::Error::other)?;
        let skip = usize::try_from(offset - start).map_err(io::Error::other)?;
        Ok(Some((start, vec![0; whole], skip)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Blocking) -> underseal_device::Result<T>) -> io::Result<T> {
        act(&mut self.way.lock().unwrap_or_else(PoisonError::into_inner)).map_err(io::Error::other)
    }
}

fn no_way(e: underseal_device::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot use the device below").with_source(e)
}

impl Disk for DeviceDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let Some((start, mut whole, skip)) = self.around(offset, bytes.len())? else {
            return self.with(|way| way.read(offset, bytes));
        };
        self.with(|way| way.read(start, &mut whole))?;
        bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.read_only {
            let why = "the device is read-only, and opening the volume changes something: open it for recovery (mode R)";
            return Err(io::Error::other(IoKind::Write.failed(offset, why, Errno::ROFS)));
        }
        let Some((start, mut whole, skip)) = self.around(offset, bytes.len())? else {
            return self.with(|way| way.write(offset, bytes, false));
        };
        self.with(|way| {
            way.read(start, &mut whole)?;
            whole[skip..skip + bytes.len()].copy_from_slice(bytes);
            way.write(start, &whole, false)
        })
    }

    fn sync(&self) -> io::Result<()> {
        if self.read_only { Ok(()) } else { self.with(Blocking::flush) }
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// The number of writes in flight together.
const DEPTH: u32 = 32;

/// A device with waiting: requests that can be done at once do not go through the ring.
struct WaitingDevice {
    at_once: Box<dyn Channel>,
    way: Blocking,
}

impl WaitingDevice {
    fn new(device: &dyn Device) -> Result<Self> {
        Ok(Self {
            at_once: device.channel(1).map_err(no_way)?,
            way: Blocking::deep(device, DEPTH).map_err(no_way)?,
        })
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> StepResult {
        match self.at_once.read_now(offset, data) {
            Immediate::Done => Ok(()),
            Immediate::Blocked(_) => Ok(self.way.read(offset, data)?),
            Immediate::Failed(e) => Err(e.into()),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> StepResult {
        if durable {
            return Ok(self.way.write(offset, data, true)?);
        }
        match self.at_once.write_now(offset, data) {
            Immediate::Done => Ok(()),
            Immediate::Blocked(_) => Ok(self.way.write(offset, data, false)?),
            Immediate::Failed(e) => Err(e.into()),
        }
    }

    fn write_all(&mut self, parts: &[(u64, &[u8])]) -> StepResult {
        let mut failed = Ok(());
        // The remaining parts of the writes that were not done at once.
        let left = parts.iter().filter_map(|&(offset, bytes)| {
            if failed.is_err() {
                return None;
            }
            match self.at_once.write_now(offset, bytes) {
                Immediate::Done => None,
                Immediate::Blocked(_) => Some((offset, bytes)),
                Immediate::Failed(e) => {
                    failed = Err(e.into());
                    None
                }
            }
        });
        self.way.write_all(left)?;
        failed
    }
}

/// The lower devices of a thread that waits.
pub(super) struct WaitingLower {
    data: WaitingDevice,
    meta: Option<WaitingDevice>,
}

impl WaitingLower {
    pub(super) fn new(data: &dyn Device, meta: Option<&dyn Device>) -> Result<Self> {
        Ok(Self { data: WaitingDevice::new(data)?, meta: meta.map(WaitingDevice::new).transpose()? })
    }

    fn side(&mut self, side: Side) -> &mut WaitingDevice {
        match (side, &mut self.meta) {
            (Side::Meta, Some(meta)) => meta,
            _ => &mut self.data,
        }
    }
}

impl LowerDisks for WaitingLower {
    fn may_wait(&self) -> bool {
        true
    }

    fn read(&mut self, of: Side, offset: u64, data: &mut [u8]) -> StepResult {
        self.side(of).read(offset, data)
    }

    fn write(&mut self, to: Side, offset: u64, data: &[u8], durable: bool) -> StepResult {
        self.side(to).write(offset, data, durable)
    }

    fn write_all(&mut self, to: Side, parts: &[(u64, &[u8])]) -> StepResult {
        self.side(to).write_all(parts)
    }

    fn flush(&mut self, of: Side) -> StepResult {
        Ok(self.side(of).way.flush()?)
    }

    fn flush_all(&mut self) -> StepResult {
        self.flush(Side::Data)?;
        match &mut self.meta {
            Some(meta) => Ok(meta.way.flush()?),
            None => Ok(()),
        }
    }

    fn discard(&mut self, offset: u64, len: u64) -> StepResult {
        Ok(self.data.way.discard(offset, len)?)
    }

    fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> StepResult {
        Ok(self.data.way.read_tagged(offset, data, tuples)?)
    }

    fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8]) -> StepResult {
        Ok(self.data.way.write_tagged(offset, data, tuples, false)?)
    }
}

/// The lower devices of a channel, which does not wait.
pub(super) struct NonWaitingLower {
    data: Box<dyn Channel>,
    meta: Option<Box<dyn Channel>>,
}

impl NonWaitingLower {
    /// Opens the devices for `depth` further requests in flight.
    pub(super) fn new(
        data: &dyn Device,
        meta: Option<&dyn Device>,
        depth: u32,
    ) -> underseal_device::Result<Self> {
        Ok(Self { data: data.channel(depth)?, meta: meta.map(|meta| meta.channel(depth)).transpose()? })
    }

    pub(super) fn side(&mut self, side: Side) -> &mut dyn Channel {
        match (side, &mut self.meta) {
            (Side::Meta, Some(meta)) => &mut **meta,
            _ => &mut *self.data,
        }
    }
}

fn at_once(now: Immediate) -> StepResult {
    match now {
        Immediate::Done => Ok(()),
        Immediate::Blocked(_) => Err(Stop::Blocked(0)),
        Immediate::Failed(e) => Err(e.into()),
    }
}

impl LowerDisks for NonWaitingLower {
    fn may_wait(&self) -> bool {
        false
    }

    fn read(&mut self, of: Side, offset: u64, data: &mut [u8]) -> StepResult {
        at_once(self.side(of).read_now(offset, data))
    }

    fn write(&mut self, to: Side, offset: u64, data: &[u8], durable: bool) -> StepResult {
        if durable { Err(Stop::Blocked(0)) } else { at_once(self.side(to).write_now(offset, data)) }
    }

    fn flush(&mut self, _of: Side) -> StepResult {
        Err(Stop::Blocked(0))
    }

    fn flush_all(&mut self) -> StepResult {
        Err(Stop::Blocked(0))
    }

    fn discard(&mut self, _offset: u64, _len: u64) -> StepResult {
        Err(Stop::Blocked(0))
    }

    fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> StepResult {
        at_once(self.data.read_tagged_now(offset, data, tuples))
    }

    fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8]) -> StepResult {
        at_once(self.data.write_tagged_now(offset, data, tuples))
    }
}
