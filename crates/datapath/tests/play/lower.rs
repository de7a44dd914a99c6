//! The lower devices of a round.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use underseal_device::{Device, FileDevice, NbdDevice, OpenOptions, RamDevice, StripeDevice, Zones};
use underseal_device_lab::{ModelDevice, Profile, ZonedDevice};
use underseal_nbd_protocol::TransmissionFlags as Flags;

use super::dice::Dice;
use super::forms::ROOM;
use super::round::Setup;
use super::server::{Behaviour, Server};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lower {
    Ram,
    Cached,
    Direct,
    /// A tmpfs, whose files do not support `RWF_NOWAIT`.
    Tmpfs,
    Stripe,
    Nvme,
    /// Zones that are written in sequence.
    Zoned,
    /// An NBD server, with a connection for each queue.
    Nbd,
    /// An NBD server for a single client: all queues share a connection.
    NbdShared,
}

impl Lower {
    pub(crate) const ALL: [Self; 11] = [
        Self::Ram,
        Self::Ram,
        Self::Cached,
        Self::Direct,
        Self::Tmpfs,
        Self::Stripe,
        Self::Nvme,
        Self::Zoned,
        Self::Nbd,
        Self::NbdShared,
        Self::NbdShared,
    ];
}

/// Bytes of a zone.
pub(crate) const ZONE: u64 = 256 << 10;

/// A device, with the server and folder that end with the round.
pub(crate) struct Place {
    pub(crate) device: Arc<dyn Device>,
    _server: Option<Server>,
    _folder: Option<TempDir>,
}

impl Place {
    /// Makes the round's device of this number.
    pub(crate) fn new(setup: &Setup, folder: &Path, number: u64) -> Self {
        let size = setup.size + ROOM;
        let ram = || -> Arc<dyn Device> { Arc::new(RamDevice::new(size)) };
        let on = |device| Self { device, _server: None, _folder: None };
        let file = |parent: &Path, direct| {
            let folder = tempfile::tempdir_in(parent).unwrap();
            let path: PathBuf = folder.path().join("image");
            File::create(&path).unwrap().set_len(size).unwrap();
            let device = FileDevice::open(&path, OpenOptions { direct, ..Default::default() }).unwrap();
            Self { device: Arc::new(device), _server: None, _folder: Some(folder) }
        };
        match setup.device {
            Lower::Ram => on(ram()),
            Lower::Cached => file(folder, false),
            // A filesystem without direct I/O is written through its cache.
            Lower::Direct => file(folder, setup.block >= 512),
            Lower::Tmpfs => file(Path::new("/dev/shm"), false),
            Lower::Stripe => on(Arc::new(StripeDevice::new(vec![ram(), ram()], 4096).unwrap())),
            Lower::Nvme => on(Arc::new(ModelDevice::new(ram(), &Profile::nvme().scaled(0.1)))),
            Lower::Zoned => {
                let zones = Zones { size: ZONE, conventional: 0 };
                on(Arc::new(ZonedDevice::new(ram(), zones, true).unwrap()))
            }
            Lower::Nbd | Lower::NbdShared => {
                let server = Server::start(behaviour(setup, size, number));
                // Acknowledged writes are in the server's memory, which survives its connections.
                let uri = server.uri("&unflushed=trust");
                let device = NbdDevice::open(uri.parse().unwrap(), false).unwrap();
                Self { device: Arc::new(device), _server: Some(server), _folder: None }
            }
        }
    }
}

/// The server's behaviour: replies in pieces, in another order, and lost connections.
fn behaviour(setup: &Setup, size: u64, number: u64) -> Behaviour {
    let mut dice = Dice::of(setup.seed, 50 + number);
    let mut is = Behaviour::plain(usize::try_from(size).unwrap());
    if setup.device == Lower::NbdShared {
        is = is.without(Flags::CAN_MULTI_CONN);
    }
    is.records = false;
    is.structured = dice.one_in(2);
    is.reorders = dice.one_in(2);
    is.pieces = (is.structured && dice.one_in(2)).then_some(4096);
    is.dies_after = dice.one_in(2).then(|| 100 + dice.below(4000));
    is
}
