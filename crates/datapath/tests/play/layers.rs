//! Integrity volumes between a round's volume and its devices, with tags from real ciphers or from
//! the layer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use underseal_cipher::{BuildOptions, Integrity, IntegrityKind, Key, SectorCipher, SectorSize, build_with};
use underseal_device::Device;
use underseal_integrity::{
    Disks, IntegrityDevice, KeyedHash, NewSuperblock, OpenSettings, RunSettings, WriteMode, format,
};

use super::counted_device::CountedDevice;
use super::dice::Dice;

/// A cipher with tags: its name, the bytes of its key, and the bytes of its tuples.
type Sealed = (&'static str, u8, u16);

const SEALED: [Sealed; 5] = [
    ("capi:gcm(aes)-random", 32, 28),
    ("capi:rfc7539(chacha20,poly1305)-random", 32, 28),
    ("capi:authenc(hmac(sha256),xts(aes))-random", 96, 48),
    ("capi:authenc(hmac(sha256),xts(aes))-plain64", 96, 32),
    ("capi:aegis128-random", 16, 32),
];

/// The properties of the layers, by the seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer {
    pub(crate) mode: WriteMode,
    /// The cipher whose tags the layers store; `None`: the layers make the tags.
    pub(crate) sealed: Option<Sealed>,
    hash: &'static str,
    journal_mac: bool,
    /// Superblock, journal and tags lie on a second device.
    pub(crate) meta: bool,
    pub(crate) discards: bool,
    settings: [u64; 3],
}

impl Layer {
    pub(crate) fn new(mut dice: Dice) -> Self {
        let mode = dice.pick(&[
            WriteMode::Journal,
            WriteMode::Journal,
            WriteMode::Bitmap,
            WriteMode::Direct,
            WriteMode::Inline,
        ]);
        let is_inline = mode == WriteMode::Inline;
        let makes_tags = mode == WriteMode::Bitmap || is_inline || dice.one_in(4);
        let hash = if mode == WriteMode::Bitmap { ["crc32c", "sha256"] } else { ["crc32c", "hmac(sha256)"] };
        Self {
            mode,
            sealed: (!makes_tags).then(|| dice.pick(&SEALED)),
            hash: dice.pick(&hash),
            journal_mac: mode == WriteMode::Journal && dice.one_in(3),
            settings: [dice.below(3) * (32 << 10), dice.below(2000), 1 + dice.below(4)],
            meta: !is_inline && dice.one_in(3),
            // Ciphers with tags allow no discards.
            discards: makes_tags && !is_inline && dice.one_in(2),
        }
    }

    /// The tuple bytes of a device with inline tags: more than any tag needs, as the disk was
    /// formatted.
    pub(crate) fn tuple(&self) -> Option<u32> {
        (self.mode == WriteMode::Inline).then_some(40)
    }

    /// True when a block that is being written at a power cut or device fault cannot be read until
    /// it is written again: its data and tag differ in age. In mode B tags are made again after a
    /// power cut, but not after a failed write.
    pub(crate) fn tears(&self, faults: bool, cuts: bool) -> bool {
        match self.mode {
            WriteMode::Direct | WriteMode::Inline => faults || cuts,
            WriteMode::Bitmap => faults,
            _ => false,
        }
    }

    fn options(&self) -> OpenSettings {
        let hash = |name: &str| {
            let key = name.starts_with("hmac").then(|| Key::new(&[9; 32]).unwrap());
            KeyedHash::new(name, key.as_ref()).unwrap()
        };
        OpenSettings {
            hash: self.sealed.is_none().then(|| hash(self.hash)),
            journal_mac: self.journal_mac.then(|| hash("hmac(sha256)")),
            sectors_per_bit: Some(128),
            allow_discards: self.discards,
            ..OpenSettings::new(self.mode)
        }
    }

    /// The cipher over the layers, where they do not make the tags.
    pub(crate) fn cipher(&self, sector: u32, key: u8) -> Option<Arc<dyn SectorCipher>> {
        let (spec, len, bytes) = self.sealed?;
        let bytes = usize::from(bytes);
        let beside =
            Integrity { bytes, tuple: bytes, kind: IntegrityKind::Aead, key_size: None, iv_offset: 0 };
        let options = BuildOptions {
            spec: &spec.parse().unwrap(),
            key: &Key::new(&(0..len).map(|i| key ^ i).collect::<Vec<u8>>()).unwrap(),
            sector_size: SectorSize::new(sector).unwrap(),
            iv_large_sectors: false,
            integrity: Some(beside),
            cpu: None,
        };
        Some(build_with(&options).unwrap())
    }
}

/// The devices of a layer.
pub(crate) struct Below {
    pub(crate) data: Arc<dyn Device>,
    pub(crate) meta: Option<Arc<dyn Device>>,
}

/// The layers, as last opened.
pub(crate) struct Layers {
    layer: Layer,
    below: Vec<Below>,
    open: Mutex<Vec<Arc<IntegrityDevice>>>,
}

impl Layers {
    /// Formats layers over these devices. No block has a valid tag.
    pub(crate) fn new(layer: Layer, sector: u32, below: Vec<Below>) -> Self {
        let options = layer.options();
        for device in &below {
            let counted_device = |device: &Arc<dyn Device>| CountedDevice::new(device, Arc::default());
            let (data, meta) = (counted_device(&device.data), device.meta.as_ref().map(counted_device));
            let disks = Disks { data: &data, meta: meta.as_ref().map(|counted_device| counted_device as _) };
            let of = NewSuperblock {
                tag_size: layer.sealed.map(|(_, _, bytes)| bytes),
                block_size: sector,
                // A few sections, so that they are soon used again.
                journal_sectors: Some(1200),
                interleave_sectors: Some(1024),
                ..NewSuperblock::default()
            };
            let superblock = of.superblock(&options, disks.sizes().unwrap()).unwrap();
            format(&disks, &options, &superblock).unwrap();
        }
        let layers = Self { layer, below, open: Mutex::default() };
        layers.open().unwrap();
        layers
    }

    /// Opens the layers as they stand, while they are closed. Returns the layer's error.
    pub(crate) fn open(&self) -> underseal_integrity::Result<()> {
        let [tag_cache, millis, workers] = self.layer.settings;
        let settings = RunSettings {
            tag_cache: usize::try_from(tag_cache).unwrap(),
            commit_time: Duration::from_millis(millis),
            bitmap_time: Duration::from_millis(millis),
            workers: usize::try_from(workers).unwrap(),
            ..RunSettings::default()
        };
        let options = self.layer.options();
        let open = |device: &Below| {
            let Below { data, meta } = device;
            IntegrityDevice::open(data.clone(), meta.clone(), &options, &settings).map(Arc::new)
        };
        let opened = self.below.iter().map(open).collect::<underseal_integrity::Result<Vec<_>>>()?;
        *self.open.lock().unwrap() = opened;
        Ok(())
    }

    /// Closes the layers, with no request in flight. Returns whether all are clean.
    pub(crate) fn close(&self) -> bool {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        // Every layer is closed, also after the failure of another.
        let closed: Vec<_> = open.iter().map(|layer| layer.close()).collect();
        closed.iter().all(Result::is_ok)
    }

    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.open.lock().unwrap().iter().map(|layer| layer.clone() as Arc<dyn Device>).collect()
    }

    /// The layers' count of blocks whose tag did not match.
    pub(crate) fn mismatches(&self) -> u64 {
        self.open.lock().unwrap().iter().map(|layer| layer.status().mismatches).sum()
    }
}
