//! Volumes to be attacked, each as bytes.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use underseal_cipher::{BuildOptions, Integrity, IntegrityKind, Key, SectorCipher, SectorSize, build_with};
use underseal_datapath::{ErrorKind, Mapping, Queue, QueueOptions, Request};
use underseal_device::{Blocking, Device, RamDevice};
use underseal_integrity::{
    Disk, Disks, IntegrityDevice, KeyedHash, NewSuperblock, OpenSettings, RunSettings, Superblock,
    VolumeGeometry, WriteMode, format, look,
};
use underseal_volume::{Segment, Volume};

/// Bytes of a device: a journal long enough that nothing is copied back yet, and some areas of 64
/// blocks.
pub(crate) const SIZE: usize = 768 << 10;
const BLOCK: usize = 512;

/// The protection of a volume: a column of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// The internal hash.
    pub(crate) hash: Option<&'static str>,
    /// The journal has a MAC with a key.
    pub(crate) mac: bool,
    /// The cipher above the layer, its key's length, and the length of its tuples.
    pub(crate) cipher: (&'static str, usize),
    pub(crate) beside: Option<(usize, IntegrityKind)>,
}

const XTS: (&str, usize) = ("aes-xts-plain64", 64);

pub(crate) const HASH: Column =
    Column { name: "hash", hash: Some("sha256"), mac: false, cipher: XTS, beside: None };
pub(crate) const KEYED: Column = Column { name: "keyed", hash: Some("hmac(sha256)"), ..HASH };
pub(crate) const KEYED_MAC: Column = Column { name: "keyed, journal MAC", mac: true, ..KEYED };
pub(crate) const AEAD: Column = Column {
    name: "AEAD",
    hash: None,
    mac: false,
    cipher: ("capi:gcm(aes)-random", 32),
    beside: Some((28, IntegrityKind::Aead)),
};
pub(crate) const CHACHA: Column =
    Column { name: "AEAD of ChaCha20", cipher: ("capi:rfc7539(chacha20,poly1305)-random", 32), ..AEAD };
pub(crate) const AEAD_MAC: Column = Column {
    name: "AEAD, journal MAC",
    mac: true,
    cipher: ("capi:authenc(hmac(sha256),xts(aes))-plain64", 96),
    beside: Some((32, IntegrityKind::Aead)),
    ..AEAD
};
pub(crate) const NONE: Column = Column {
    name: "none",
    cipher: ("capi:xts(aes)-random", 64),
    beside: Some((16, IntegrityKind::None)),
    ..AEAD
};

pub(crate) type Block = Vec<u8>;

/// The contents of a block in a version.
pub(crate) fn contents(block: u64, version: u64) -> Block {
    let word = |i: u64| (block << 32 | version << 16 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BLOCK as u64 / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

fn key(byte: u8, len: usize) -> Key {
    Key::new(&(0..len).map(|i| byte.wrapping_add(u8::try_from(i).unwrap())).collect::<Vec<_>>()).unwrap()
}

/// A disk in memory.
pub(crate) struct Image(pub(crate) RefCell<Vec<u8>>);

impl Disk for Image {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let all = self.0.borrow();
        bytes.copy_from_slice(all.get(at..at + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Column {
    /// The hash with a key: the owner's key is 1.
    pub(crate) fn hash(&self, of: u8) -> Option<KeyedHash> {
        self.hash.map(|name| {
            let key = name.starts_with("hmac").then(|| key(of, 32));
            KeyedHash::new(name, key.as_ref()).unwrap()
        })
    }

    pub(crate) fn options(&self, mode: WriteMode) -> OpenSettings {
        let mac = self.mac.then(|| KeyedHash::new("hmac(sha256)", Some(&key(2, 32))).unwrap());
        // The layer above sets the tag size, if it needs tags.
        let tag_size = self.beside.map(|(bytes, _)| u16::try_from(bytes).unwrap());
        let block_size = u32::try_from(BLOCK).ok().filter(|_| tag_size.is_some());
        OpenSettings { hash: self.hash(1), journal_mac: mac, tag_size, block_size, ..OpenSettings::new(mode) }
    }

    pub(crate) fn cipher(&self, of: u8) -> Arc<dyn SectorCipher> {
        let (spec, len) = self.cipher;
        let integrity = self.beside.map(|(bytes, kind)| Integrity {
            bytes,
            tuple: bytes,
            kind,
            key_size: None,
            iv_offset: 0,
        });
        build_with(&BuildOptions {
            spec: &spec.parse().unwrap(),
            key: &key(of + 2, len),
            sector_size: SectorSize::S512,
            iv_large_sectors: false,
            integrity,
            cpu: None,
        })
        .unwrap()
    }

    /// Formats a volume whose blocks were never written.
    fn format(&self, has_salt: bool) -> Vec<u8> {
        let image = Image(RefCell::new(vec![0; SIZE]));
        let options = self.options(WriteMode::Journal);
        let disks = Disks::one(&image);
        let of = NewSuperblock {
            tag_size: self.beside.map(|(bytes, _)| u16::try_from(bytes).unwrap()),
            journal_sectors: Some(800),
            interleave_sectors: Some(64),
            legacy_hmac: !has_salt,
            ..NewSuperblock::default()
        };
        let superblock = of.superblock(&options, disks.sizes().unwrap()).unwrap();
        format(&disks, &options, &superblock).unwrap();
        image.0.into_inner()
    }
}

/// An open volume.
pub(crate) struct Open {
    ram: Arc<RamDevice>,
    layer: Arc<IntegrityDevice>,
    queue: Queue,
}

/// Opens a volume with these bytes; a refusal also returns the bytes after it.
pub(crate) fn open(
    column: &Column,
    bytes: &[u8],
    options: &OpenSettings,
) -> Result<Open, (underseal_integrity::Error, Vec<u8>)> {
    let ram = Arc::new(RamDevice::new(bytes.len() as u64));
    Blocking::new(&*ram).unwrap().write(0, bytes, false).unwrap();
    let settings = RunSettings { workers: 1, ..RunSettings::default() };
    let layer = IntegrityDevice::open(ram.clone(), None, options, &settings);
    let layer = Arc::new(layer.map_err(|e| (e, all(&ram)))?);
    let segment = Segment::stored(0, layer.geometry().size, 0, 0, column.cipher(1));
    let mapping = Mapping::new(Volume::new(vec![segment]).unwrap(), layer.clone()).unwrap();
    let queue = Queue::open(Arc::new(mapping), QueueOptions { depth: 1, max_request: 1 << 20 }).unwrap();
    Ok(Open { ram, layer, queue })
}

fn all(ram: &RamDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(ram.geometry().size).unwrap()];
    Blocking::new(ram).unwrap().read(0, &mut bytes).unwrap();
    bytes
}

impl Open {
    pub(crate) fn blocks(&self) -> u64 {
        self.layer.geometry().size / BLOCK as u64
    }

    pub(crate) fn read(&mut self, block: u64) -> Result<Block, ErrorKind> {
        self.ask(Request::Read { offset: block * BLOCK as u64, len: BLOCK })
    }

    pub(crate) fn write(&mut self, block: u64, bytes: &[u8]) {
        let mut data = self.queue.alloc(bytes.len()).unwrap();
        data.copy_from_slice(bytes);
        self.ask(Request::Write { offset: block * BLOCK as u64, data, durable: false }).unwrap();
    }

    fn ask(&mut self, request: Request) -> Result<Block, ErrorKind> {
        self.queue.submit(0, request).expect("there is room");
        let over = loop {
            match self.queue.next_completion() {
                Some(over) => break over,
                None => self.queue.wait().unwrap(),
            }
        };
        let bytes = over.buffer.as_ref().map(|buffer| buffer.to_vec());
        over.buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        over.result.map(|()| bytes.unwrap_or_default()).map_err(|e| e.kind())
    }

    /// Flushes, and returns the disk's bytes while the volume is open.
    fn flushed(&mut self) -> Vec<u8> {
        self.ask(Request::Flush).unwrap();
        all(&self.ram)
    }

    fn closed(self) -> Vec<u8> {
        drop(self.queue);
        self.layer.close().unwrap();
        all(&self.ram)
    }

    pub(crate) fn wait_until_recalculated(&self) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(240);
        while self.layer.status().recalculated.is_some() {
            assert!(std::time::Instant::now() < end, "tags are not made");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// This block and the next one have a newer version.
pub(crate) const CHANGED: u64 = 16;

/// Copies of one volume's disk at several times.
pub(crate) struct Copies {
    pub(crate) column: Column,
    pub(crate) geometry: VolumeGeometry,
    pub(crate) superblock: Superblock,
    /// Every block is of version 1, and the volume was closed.
    pub(crate) old: Vec<u8>,
    /// [`CHANGED`] and the next have version 2 in the journal, and version 1 in their places.
    pub(crate) journal: Vec<u8>,
    /// As `journal`, after the volume was closed.
    pub(crate) new: Vec<u8>,
}

impl Copies {
    pub(crate) fn of(column: Column, has_salt: bool) -> Self {
        let options = column.options(WriteMode::Journal);
        let fresh = column.format(has_salt);
        let mut volume = open(&column, &fresh, &options).map_err(|(e, _)| e).unwrap();
        let whole: Vec<u8> = (0..volume.blocks()).flat_map(|block| contents(block, 1)).collect();
        volume.write(0, &whole);
        let old = volume.closed();
        let mut volume = open(&column, &old, &options).map_err(|(e, _)| e).unwrap();
        volume.write(CHANGED, &[contents(CHANGED, 2), contents(CHANGED + 1, 2)].concat());
        let journal = volume.flushed();
        let new = volume.closed();
        let image = Image(RefCell::new(old.clone()));
        let looked = look(&Disks::one(&image), &options).unwrap();
        Self { column, geometry: looked.geometry, superblock: looked.superblock, old, journal, new }
    }

    /// The ranges of a block's data and tag.
    pub(crate) fn places(&self, block: u64) -> [std::ops::Range<usize>; 2] {
        let place = self.geometry.place(block);
        let (data, tag) = (usize::try_from(place.data).unwrap(), usize::try_from(place.tag).unwrap());
        [data..data + BLOCK, tag..tag + self.geometry.tag_size()]
    }

    /// The first byte of the journal section with the newer version, in [`Copies::journal`].
    pub(crate) fn section(&self) -> usize {
        let begins = |at: &usize| self.journal[*at..at + 8] == CHANGED.to_le_bytes();
        let mut sections = (0..self.geometry.sections())
            .map(|index| usize::try_from(self.geometry.section_offset(index)).unwrap());
        sections.find(begins).expect("it is the first entry of a section")
    }

    /// The range of the journal.
    pub(crate) fn journal_area(&self) -> std::ops::Range<usize> {
        let from = usize::try_from(self.geometry.journal_offset()).unwrap();
        from..from + usize::try_from(self.geometry.journal_bytes()).unwrap()
    }
}
