//! A disk that forgets what was not flushed when its power is cut, as a loop device.
//!
//! Each block of 4096 bytes that was written since the last flush becomes one of the things that it
//! was since then, by itself: no order holds but that of flushes.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use underseal_cipher::{CipherSpec, Key, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::{IoKind, RamDevice};
use underseal_device_lab::{Fault, FaultControl, FaultDevice, Rule};
use underseal_export::fuse::{FuseConfig, FuseServer, FuseStopper, MountPoint};
use underseal_volume::{Segment, Volume};

use crate::support::Scratch;
use crate::support::mounts::Loop;

const BLOCK: u32 = 4096;

pub(crate) struct Disk {
    control: Arc<FaultControl>,
    path: PathBuf,
    stopper: FuseStopper,
    server: Option<JoinHandle<()>>,
}

impl Disk {
    pub(crate) fn new(scratch: &Scratch, size: u64, seed: u64) -> Self {
        let device = FaultDevice::with_volatile_cache(Arc::new(RamDevice::new(size)), seed, BLOCK);
        let control = device.control();
        let spec: CipherSpec = "cipher_null-ecb".parse().unwrap();
        let cipher = build(&spec, &Key::zeroed(0).unwrap(), SectorSize::new(BLOCK).unwrap()).unwrap();
        let volume = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)]).unwrap();
        let mapping = Arc::new(Mapping::new(volume, Arc::new(device)).unwrap().with_bytes());
        let path = scratch.file("disk", b"");
        let point = MountPoint::new(&path).unwrap();
        let server = FuseServer::mount(mapping, &point, &FuseConfig::default()).unwrap();
        let stopper = server.stopper();
        let server = thread::spawn(move || server.run().unwrap());
        Self { control, path, stopper, server: Some(server) }
    }

    /// Attaches the file as a block device that takes whole blocks only. Pages do not change during
    /// a write, else a block could be neither old nor new: as on a disk with checksums.
    pub(crate) fn attach(&self) -> Loop {
        let device = Loop::attach(&self.path, &["--direct-io=on", "--sector-size", "4096"]);
        let name = device.device().file_name().unwrap();
        let stable = Path::new("/sys/block").join(name).join("queue/stable_writes");
        fs::write(stable, "1").unwrap();
        device
    }

    /// Blocks that a power cut would endanger.
    pub(crate) fn unflushed(&self) -> usize {
        self.control.unflushed()
    }

    /// Writes to these bytes fail from now on.
    pub(crate) fn fail_writes(&self, range: Range<u64>) {
        self.control.add(Rule::new(Fault::EIO).on(IoKind::Write).within(range));
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&self) {
        self.control.clear();
    }

    pub(crate) fn cut(&self) {
        self.control.power_cut().unwrap();
    }

    pub(crate) fn power_on(&self) {
        self.control.power_on();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.server.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "the disk's server failed");
    }
}
