//! Volumes over an integrity layer, with correct tags only.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use underseal_cipher::{
    BuildOptions, CipherSpec, Integrity, IntegrityKind, SectorCipher, SectorSize, build_with,
};
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::{Blocking, Device};
use underseal_integrity::{
    Disk, Disks, IntegrityDevice, KeyedHash, NewSuperblock, OpenSettings, RunSettings, WriteMode, format,
};

use crate::volumes::{self, XTS};
use crate::{Error, ErrorKind, Result};

/// AES-256-GCM, its IVs stored beside its tags.
const GCM: &str = "capi:gcm(aes)-random";
const GCM_BYTES: u16 = 28;

/// The maker of the tags.
#[derive(Debug, Clone, Copy)]
pub(super) enum TagLayer {
    /// The cipher.
    Aead,
    /// The layer, with this hash.
    Hash(&'static str),
}

/// A volume over all of a new layer on this device.
pub(super) fn mapping(
    device: &Arc<dyn Device>,
    tags: TagLayer,
    mode: WriteMode,
    sector: u32,
) -> Result<Arc<Mapping>> {
    let options = match tags {
        TagLayer::Aead => OpenSettings::new(mode),
        TagLayer::Hash(name) => {
            let key = name.starts_with("hmac").then(|| volumes::key(32, 0)).transpose()?;
            OpenSettings { hash: Some(KeyedHash::new(name, key.as_ref())?), ..OpenSettings::new(mode) }
        }
    };
    let of = NewSuperblock {
        tag_size: matches!(tags, TagLayer::Aead).then_some(GCM_BYTES),
        block_size: sector,
        journal_sectors: Some(device.geometry().size / 512 / 8),
        ..NewSuperblock::default()
    };
    {
        let disk = Bytes { size: device.geometry().size, way: RefCell::new(Blocking::new(&**device)?) };
        let disks = Disks::one(&disk);
        let superblock = of.superblock(&options, disks.sizes()?)?;
        format(&disks, &options, &superblock)?;
    }
    let layer = IntegrityDevice::open(device.clone(), None, &options, &RunSettings::default())?;
    let layer: Arc<dyn Device> = Arc::new(layer);
    let cipher = match tags {
        TagLayer::Aead => gcm(sector)?,
        TagLayer::Hash(_) => volumes::cipher(XTS, sector)?,
    };
    let mapping = volumes::over(cipher, &layer)?;
    wipe(&mapping)?;
    Ok(mapping)
}

fn gcm(sector: u32) -> Result<Arc<dyn SectorCipher>> {
    let spec: CipherSpec = GCM.parse()?;
    let bytes = usize::from(GCM_BYTES);
    let integrity =
        Integrity { bytes, tuple: bytes, kind: IntegrityKind::Aead, key_size: None, iv_offset: 0 };
    let key = volumes::key(32, 0)?;
    Ok(build_with(&BuildOptions {
        spec: &spec,
        key: &key,
        sector_size: SectorSize::new(sector)?,
        iv_large_sectors: false,
        integrity: Some(integrity),
        cpu: None,
    })?)
}

/// Writes every sector, so that every tag is right.
fn wipe(mapping: &Arc<Mapping>) -> Result<()> {
    let mut queue = Queue::open(mapping.clone(), QueueOptions { depth: 1, max_request: 1 << 20 })?;
    let zeroes =
        Request::WriteZeroes { offset: 0, len: mapping.size(), durable: false, punch: false, fast: false };
    for request in [zeroes, Request::Flush] {
        queue
            .submit(0, request)
            .map_err(|_| Error::new(ErrorKind::Wrong, "an idle queue takes no request"))?;
        let over = loop {
            match queue.next_completion() {
                Some(over) => break over,
                None => queue.wait().map_err(Error::system("the queue cannot wait"))?,
            }
        };
        over.result?;
    }
    Ok(())
}

/// A device as the disk that is formatted.
struct Bytes {
    size: u64,
    way: RefCell<Blocking>,
}

impl Disk for Bytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.way.borrow_mut().read(offset, bytes).map_err(io::Error::other)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.way.borrow_mut().write(offset, bytes, false).map_err(io::Error::other)
    }

    fn sync(&self) -> io::Result<()> {
        self.way.borrow_mut().flush().map_err(io::Error::other)
    }
}
