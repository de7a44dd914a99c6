//! A device on a server: an NBD export, or an image on Ceph. Requests are of whole blocks.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use underseal_device::{Blocking, Device};

/// An open image on a server.
pub(super) struct RemoteDevice {
    // Dropped first: the device is closed when no request can come.
    pub(super) requests: Mutex<Blocking>,
    pub(super) device: Arc<dyn Device>,
}

impl RemoteDevice {
    pub(super) fn requests(&self) -> MutexGuard<'_, Blocking> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let (first, span, skip) = blocks(&*self.device, offset, bytes.len())?;
        if (skip, span) == (0, bytes.len()) {
            return self.requests().read(first, bytes).map_err(io::Error::other);
        }
        let mut whole = vec![0; span];
        self.requests().read(first, &mut whole).map_err(io::Error::other)?;
        bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
        Ok(())
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (first, span, skip) = blocks(&*self.device, offset, bytes.len())?;
        let mut requests = self.requests();
        if (skip, span) == (0, bytes.len()) {
            return requests.write(first, bytes, false).map_err(io::Error::other);
        }
        let mut whole = vec![0; span];
        requests.read(first, &mut whole).map_err(io::Error::other)?;
        whole[skip..skip + bytes.len()].copy_from_slice(bytes);
        requests.write(first, &whole, false).map_err(io::Error::other)
    }
}

/// The device's blocks that hold a range, and where the range begins in them.
fn blocks(device: &dyn Device, offset: u64, len: usize) -> io::Result<(u64, usize, usize)> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block);
    let eof = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let end = offset.checked_add(len as u64).filter(|&end| end <= geometry.size).ok_or_else(eof)?;
    let first = offset / block * block;
    let span = end.next_multiple_of(block).min(geometry.size) - first;
    let fits = |bytes: u64| usize::try_from(bytes).map_err(|_| eof());
    Ok((first, fits(span)?, fits(offset - first)?))
}
