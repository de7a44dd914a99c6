//! A device as a reencryption and its state use it: any bytes, one request at a time.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use underseal_device::{Blocking, Device};
use underseal_integrity::Disk;
use underseal_volume::{ReadAt, Target};

pub(crate) struct CountedDevice {
    device: Arc<dyn Device>,
    blocking: Mutex<Blocking>,
    block: u64,
    /// Bytes were written and not synced.
    writes: Arc<AtomicBool>,
}

impl CountedDevice {
    pub(crate) fn new(device: &Arc<dyn Device>, writes: Arc<AtomicBool>) -> Self {
        let blocking = Mutex::new(Blocking::new(&**device).unwrap());
        let block = u64::from(device.geometry().block.max(512));
        Self { device: device.clone(), blocking, block, writes }
    }

    /// The whole blocks around `len` bytes, and the offset of these bytes in them.
    fn around(&self, offset: u64, len: usize) -> io::Result<(u64, Vec<u8>, usize)> {
        let end = offset + len as u64;
        if end > self.device.geometry().size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = offset / self.block * self.block;
        let to = end.next_multiple_of(self.block).min(self.device.geometry().size);
        Ok((from, vec![0; to_usize(to - from)], to_usize(offset - from)))
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

impl ReadAt for CountedDevice {
    fn size(&self) -> io::Result<u64> {
        Ok(self.device.geometry().size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (from, mut bytes, at) = self.around(offset, buf.len())?;
        self.blocking.lock().unwrap().read(from, &mut bytes).map_err(io::Error::other)?;
        buf.copy_from_slice(&bytes[at..][..buf.len()]);
        Ok(())
    }
}

impl Disk for CountedDevice {
    fn size(&self) -> io::Result<u64> {
        Ok(self.device.geometry().size)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Target for CountedDevice {
    fn write_all_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let (from, mut bytes, at) = self.around(offset, new.len())?;
        self.writes.store(true, SeqCst);
        let mut blocking = self.blocking.lock().unwrap();
        if bytes.len() > new.len() {
            blocking.read(from, &mut bytes).map_err(io::Error::other)?;
        }
        bytes[at..][..new.len()].copy_from_slice(new);
        blocking.write(from, &bytes, false).map_err(io::Error::other)
    }

    fn sync_all(&self) -> io::Result<()> {
        let flushed = self.blocking.lock().unwrap().flush().map_err(io::Error::other);
        self.writes.store(false, SeqCst);
        flushed
    }

    fn set_len(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
