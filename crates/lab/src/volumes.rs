//! Devices in memory, and volumes on them, for the experiments.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use underseal_cipher::{CipherSpec, Key, SectorCipher, SectorSize, build, key_sizes};
use underseal_datapath::Mapping;
use underseal_device::{Blocking, Device, FileDevice, OpenOptions, RamDevice};
use underseal_volume::{Segment, Volume};

use crate::{Error, Result};

/// AES-256-XTS.
pub(crate) const XTS: &str = "aes-xts-plain64";
/// The published experiment's cipher: `capi:ecb(cipher_null)`.
pub(crate) const NULL: &str = "cipher_null-ecb";

/// Returns a cipher with a key of consecutive bytes.
pub(crate) fn cipher(spec: &str, sector: u32) -> Result<Arc<dyn SectorCipher>> {
    let spec: CipherSpec = spec.parse()?;
    let len = if spec.is_null() { 0 } else { key_sizes(&spec)?.last().copied().unwrap_or(0) };
    keyed(&spec, len * spec.key_count() as usize, 0, sector)
}

/// As [`cipher`], with a key of `len` bytes that begins with `first`.
pub(crate) fn keyed(spec: &CipherSpec, len: usize, first: u8, sector: u32) -> Result<Arc<dyn SectorCipher>> {
    Ok(build(spec, &key(len, first)?, SectorSize::new(sector)?)?)
}

/// Returns a key of consecutive bytes, from `first` on.
pub(crate) fn key(len: usize, first: u8) -> Result<Key> {
    let mut key = Key::zeroed(len)?;
    let numbers = (0..=u8::MAX).cycle().skip(first.into());
    key.as_mut_bytes().iter_mut().zip(numbers).for_each(|(byte, n)| *byte = n);
    Ok(key)
}

/// Returns a volume over a whole device.
pub(crate) fn mapping(spec: &str, sector: u32, device: &Arc<dyn Device>) -> Result<Arc<Mapping>> {
    over(cipher(spec, sector)?, device)
}

/// Returns a volume over a whole device, under an existing cipher.
pub(crate) fn over(cipher: Arc<dyn SectorCipher>, device: &Arc<dyn Device>) -> Result<Arc<Mapping>> {
    Ok(Arc::new(bare_mapping(cipher, device)?))
}

/// Returns the same unshared, so that its blocks can be made smaller.
pub(crate) fn bare_mapping(cipher: Arc<dyn SectorCipher>, device: &Arc<dyn Device>) -> Result<Mapping> {
    let sector = cipher.sector_size().bytes() as u64;
    let size = device.geometry().size / sector * sector;
    let volume = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)])?;
    Ok(Mapping::new(volume, device.clone())?)
}

/// Returns a RAM disk without a kernel: a request costs a copy only. Every byte of it was written.
pub(crate) fn ram(size: u64) -> Result<Arc<dyn Device>> {
    let device = RamDevice::new(size);
    fill(&device)?;
    Ok(Arc::new(device))
}

/// Returns a RAM disk of the kernel: a file in memory, a system call for each request.
pub(crate) fn memory_file(size: u64) -> Result<Arc<dyn Device>> {
    memory(size).map(|(_, device)| device)
}

/// Returns the same, and the file itself.
pub(crate) fn memory(size: u64) -> Result<(File, Arc<dyn Device>)> {
    let refused = "the system gives no file in memory";
    let file =
        File::from(memfd_create("underseal-lab", MemfdFlags::CLOEXEC).map_err(Error::system(refused))?);
    let mut writer = &file;
    let mut left = size;
    let mut piece = vec![0; 1 << 20];
    let mut random = fastrand::Rng::with_seed(size);
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        random.fill(&mut piece[..len]);
        writer.write_all(&piece[..len]).map_err(Error::system(refused))?;
        left -= len as u64;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let device = FileDevice::open(Path::new(&path), OpenOptions::default())?;
    Ok((file, Arc::new(device)))
}

/// Writes noise to all of a device.
pub(crate) fn fill(device: &dyn Device) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let size = device.geometry().size;
    let mut random = fastrand::Rng::with_seed(size);
    let mut piece = vec![0; PIECE];
    let mut to = Blocking::new(device)?;
    for offset in (0..size).step_by(PIECE) {
        let len = usize::try_from(size - offset).unwrap_or(usize::MAX).min(PIECE);
        random.fill(&mut piece[..len]);
        to.write(offset, &piece[..len], false)?;
    }
    Ok(())
}
