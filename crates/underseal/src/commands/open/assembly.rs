//! The assembly of an open volume and its exports, for `underseal open` and `underseal upgrade`:
//! both take these steps, in this order.
//!
//! ```text
//!   OpenVolume::new   the mapping as its exports need it, the reencrypter
//!   Assembly::new     the state for a handover, the stoppers, the control socket and the metrics
//!   enter_sandbox     the last step that can fail
//!   activate          signals and lost devices stop the exports
//!   serve             until the volume is closed, and the last flush
//! ```
//!
//! A server that was just started is activated before it enters its sandbox; the new server of a
//! handover only when the volume is its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use underseal_datapath::Mapping;
use underseal_device::FileDevice;
use underseal_export::control::status::{self, Sandbox};
use underseal_export::control::{ImageIdentity, Known, Origin, Rate, Reencrypter};
use underseal_integrity::IntegrityDevice;

use super::control::{ControlSockets, Opening, Sides};
use super::serve::{Last, Stoppers, Watch, until_stopped};
use super::servers::Servers;
use super::{control, old_server, sandbox};
use crate::cli::ServeArgs;
use crate::error::Result;
use crate::memory;
use crate::reencryption::Keys;
use crate::reencryption::online::OnlineReencryption;
use crate::volume::{Inside, Locks, Opened};

/// The keys of an unfinished reencryption that is to be resumed, and its rate.
type ResumedReencryption = (Keys, Rate);

/// A volume that is open, and not served yet.
pub(super) struct OpenVolume {
    pub(super) mapping: Arc<Mapping>,
    pub(super) reencrypter: Option<Arc<OnlineReencryption>>,
    /// The keys of an unfinished reencryption that is to be resumed, and its rate.
    resumed: Option<ResumedReencryption>,
    lower: Vec<PathBuf>,
    opened: status::Opened,
    known: Known,
    unfinished: bool,
    locks: Locks,
    layers: Vec<Arc<IntegrityDevice>>,
    image: Option<Arc<FileDevice>>,
}

impl OpenVolume {
    /// Adapts an opened volume to its exports, and prepares its reencryption. Fails with `Usage` if
    /// a rate is given and no reencryption is unfinished.
    pub(super) fn new(args: &ServeArgs, opened: Opened, rate: Option<Rate>) -> Result<Self> {
        let Opened { mapping, lower, opened, known, inside, unfinished, locks, layers, image } = opened;
        let mapping = Arc::new(for_clients(args, mapping)?);
        let (reencrypter, resumed) = reencrypter(&mapping, inside, rate)?;
        Ok(Self { mapping, reencrypter, resumed, lower, opened, known, unfinished, locks, layers, image })
    }
}

/// A volume with its exports, ready to be served.
pub(super) struct Assembly {
    pub(super) servers: Servers,
    pub(super) sides: Sides,
    pub(super) watch: Watch,
    mapping: Arc<Mapping>,
    reencrypter: Option<Arc<OnlineReencryption>>,
    resumed: Option<ResumedReencryption>,
    lower: Vec<PathBuf>,
    locks: Locks,
    layers: Vec<Arc<IntegrityDevice>>,
    stoppers: Stoppers,
    /// The sandbox in the form of `status`, once it is entered.
    in_force: Arc<OnceLock<Sandbox>>,
    /// The program's code in memory before anything is served.
    code: memory::Code,
}

/// The names of a served volume.
pub(super) struct VolumeNames<'n> {
    /// The name that users know the volume by.
    pub(super) image: &'n Path,
    /// Where clients find the volume.
    pub(super) addresses: Vec<String>,
}

impl Assembly {
    /// Starts the control socket and the metrics. Fails when the control socket's name is in use,
    /// or a thread cannot be started.
    pub(super) fn new(
        args: &ServeArgs,
        volume: OpenVolume,
        servers: Servers,
        sockets: ControlSockets,
        names: VolumeNames<'_>,
        origin: std::result::Result<Origin, String>,
        watch: Watch,
    ) -> Result<Self> {
        let OpenVolume { mapping, reencrypter, resumed, lower, opened, mut known, .. } = volume;
        let OpenVolume { unfinished, locks, layers, image, .. } = volume;
        let identity = identity(names.image, image.as_deref());
        let serving = old_server::Serving {
            image,
            unfinished,
            layers: !layers.is_empty(),
            header: lower.get(1).cloned(),
            exports: servers.for_handover(args)?,
        };
        let old_server = old_server::of(args, serving, origin);
        if old_server.is_err() {
            // The key is not handed over, so the copy is not needed.
            known.key = None;
        }
        let handover = old_server.as_ref().ok().cloned();
        let stoppers = Stoppers::new(servers.stoppers(), &mapping, handover.clone());
        let opening = Opening {
            image: names.image,
            identity,
            opened,
            known,
            addresses: names.addresses,
            transport: servers.transport(),
            reencrypter: reencrypter.clone().map(|reencrypter| reencrypter as Arc<dyn Reencrypter>),
            old_server,
        };
        let in_force = Arc::new(OnceLock::new());
        let stop = {
            let stoppers = stoppers.clone();
            move || stoppers.stop()
        };
        let tell_size = servers.size_tellers();
        let sides = control::start(&args.control, sockets, opening, &in_force, &mapping, tell_size, stop)?;
        old_server::gates(handover.as_deref(), &sides);
        Ok(Self {
            servers,
            sides,
            watch,
            mapping,
            reencrypter,
            resumed,
            lower,
            locks,
            layers,
            stoppers,
            in_force,
            code: memory::Code::find(),
        })
    }

    /// Drops the privileges that serving does not need.
    pub(super) fn enter_sandbox(&self, args: &ServeArgs) -> Result<()> {
        let locks = self.reencrypter.is_some() || !self.locks.reencryption.is_empty();
        let entered = sandbox::enter(args, &self.lower, self.servers.disk(), &self.mapping, locks)?;
        if let Some(state) = entered {
            let _ = self.in_force.set(state);
        }
        Ok(())
    }

    /// From here on signals stop the exports, and so does a lost device.
    pub(super) fn activate(&self) {
        self.watch.serves(&self.stoppers);
        let stoppers = self.stoppers.clone();
        self.mapping.when_lost(Arc::new(move || stoppers.lose()));
        self.mapping.pause_for_snapshots();
    }

    /// Resumes an unfinished reencryption, if that was asked for.
    pub(super) fn resume_reencryption(&mut self) -> Result<()> {
        match (&self.reencrypter, self.resumed.take()) {
            (Some(reencrypter), Some((key, rate))) => reencrypter.begin(key, rate),
            _ => Ok(()),
        }
    }

    /// Returns a check that a service's supervisor is answered after: reading the statistics waits
    /// for the lock of each queue, and so finds a queue that hangs.
    pub(super) fn health_check(&self) -> impl Fn() + Send + 'static {
        let alive = Arc::downgrade(&self.mapping);
        move || drop(alive.upgrade().map(|mapping| mapping.stats()))
    }

    /// Gives the memory of the start back: the start is complete, so this delays no client.
    pub(super) fn give_back_memory(&self) {
        memory::give_back(&self.code);
    }

    /// Serves until the volume is closed, as [`until_stopped`] says.
    pub(super) fn serve(self) -> Result<()> {
        let last = Last {
            reencrypter: self.reencrypter.as_deref(),
            layers: &self.layers,
            is_on_desktop: self.servers.desktop.is_some(),
        };
        let exports = self.servers.running();
        let ended = until_stopped(exports, &self.mapping, &self.stoppers, self.sides, &last, &self.watch);
        drop(self.locks);
        ended
    }
}

/// Returns the identity of the open image, if it is a file or block device. A volume with several
/// images has the file of its table, or none.
fn identity(name: &Path, image: Option<&FileDevice>) -> Option<ImageIdentity> {
    let about = match image {
        Some(image) => image.file().metadata(),
        None => std::fs::metadata(name),
    };
    ImageIdentity::of(&about.ok()?)
}

/// Returns the reencrypter of an open volume, and the keys and the rate if an unfinished
/// reencryption is to be resumed.
fn reencrypter(
    mapping: &Arc<Mapping>,
    inside: Option<Inside>,
    rate: Option<Rate>,
) -> Result<(Option<Arc<OnlineReencryption>>, Option<ResumedReencryption>)> {
    let (place, stood, key) = match inside {
        Some(Inside { place, stood: Some((stood, key)) }) => (Some(place), Some(stood), Some(key)),
        Some(Inside { place, stood: None }) => (Some(place), None, None),
        None => (None, None, None),
    };
    let resumed = match (key, rate) {
        (Some(key), Some(rate)) => Some((key, rate)),
        // A service that resumes one stays up when it has ended.
        (None, Some(_)) => {
            log::warn!("no reencryption of this volume is under way");
            None
        }
        (_, None) => None,
    };
    let online = place.map(|place| Arc::new(OnlineReencryption::new(mapping.clone(), place, stood)));
    Ok((online, resumed))
}

/// Adapts the volume to its exports. A kernel reads and writes pages, and supports no larger
/// sectors: it gets parts of these. Programs that write to a file do not align their writes.
fn for_clients(args: &ServeArgs, mapping: Mapping) -> Result<Mapping> {
    const PAGE: u32 = 4096;
    let mapping = mapping.with_busy_poll(Duration::from_micros(args.busy_poll.into()));
    let mapping = if args.mounts() { mapping.with_bytes() } else { mapping };
    let for_kernels = args.mounts() || args.ublk || args.vhost_user.path.is_some();
    if !for_kernels || mapping.block() <= PAGE {
        return Ok(mapping);
    }
    Ok(mapping.with_block(PAGE)?)
}
