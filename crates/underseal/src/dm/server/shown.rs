//! A table that is shown: as a file, or as a ublk disk.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_datapath::Mapping;
use underseal_dm::UblkDisk;
use underseal_export::fuse::{
    CarriedMount, FuseConfig, FuseHolder, FuseServer, FuseStopper, MountPlace, MountPoint,
};
use underseal_export::ublk::{UblkConfig, UblkHolder, UblkPlace, UblkServer, UblkStopper};
use underseal_export::{ErrorKind, TellSize};

use super::{DRAIN, Obeyed, Refusal, refused};
use crate::dm::orders::CarriedPlace;
use crate::error::Error;

/// How long the kernel may take to let go of a disk's server, and to take the next one.
const PASSED_ON: Duration = Duration::from_secs(10);
/// The most hardware queues of a disk, each with a thread, and the requests in flight on each.
const QUEUES: u16 = 4;
const DEPTH: u16 = 128;

/// A table that is shown.
pub(super) struct Shown {
    file: PathBuf,
    kind: ShownKind,
    serves: JoinHandle<()>,
    /// Makes the kernel read the size again.
    tell: TellSize,
}

enum ShownKind {
    Mount { carried: CarriedMount, holder: FuseHolder, stopper: FuseStopper },
    Disk { place: UblkPlace, holder: UblkHolder, stopper: UblkStopper },
}

/// Refuses an order for the export's reason.
fn failed(e: underseal_export::Error) -> Refusal {
    let errno = match e.kind() {
        ErrorKind::DeviceInUse => Errno::BUSY,
        _ => Errno::IO,
    };
    refused(errno)(e.into())
}

impl Shown {
    /// Mounts a table over a file.
    pub(super) fn mount(mapping: Arc<Mapping>, file: &Path) -> Obeyed<Self> {
        let point = MountPoint::new(file).map_err(failed)?;
        Self::of_mount(FuseServer::mount(mapping, &point, &config()).map_err(failed)?)
    }

    /// Makes a ublk disk.
    pub(super) fn disk(mapping: Arc<Mapping>, disk: UblkDisk) -> Obeyed<Self> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let config = UblkConfig {
            id: Some(disk.id),
            queues: u16::try_from(processors).unwrap_or(QUEUES).min(QUEUES),
            depth: DEPTH,
            name: String::new(),
            identity: disk.identity,
            unprivileged: false,
            drain_timeout: Duration::ZERO,
            for_tables: true,
            read_only: disk.read_only,
        };
        Self::of_disk(UblkServer::start(mapping, config).map_err(failed)?, disk.file)
    }

    /// Prepares threads for what another server has let go of. Nothing is served before
    /// [`Shown::go_on`].
    pub(super) fn rest_over(mapping: Arc<Mapping>, place: CarriedPlace, fds: Vec<OwnedFd>) -> Obeyed<Self> {
        match place {
            CarriedPlace::Mount(place) => Self::rest_over_mount(mapping, *place, fds),
            CarriedPlace::Disk { place, file } => {
                let server = UblkServer::take_over(mapping, &place, None).map_err(failed)?;
                let shown = Self::of_disk(server, file)?;
                match shown.recover() {
                    Ok(()) => Ok(shown),
                    Err(e) => {
                        shown.abandon();
                        Err(e)
                    }
                }
            }
        }
    }

    fn rest_over_mount(mapping: Arc<Mapping>, place: MountPlace, mut fds: Vec<OwnedFd>) -> Obeyed<Self> {
        let device = fds.pop().ok_or((Errno::INVAL, "there is no descriptor".to_owned()))?;
        let point = MountPoint::of_carried(&place).map_err(failed)?;
        let server = FuseServer::take_over(mapping, &point, CarriedMount { device, place }, &config());
        Self::of_mount(server.map_err(failed)?)
    }

    fn of_mount(server: FuseServer) -> Obeyed<Self> {
        let (carried, holder, stopper) =
            (server.carried().map_err(failed)?, server.holder(), server.stopper());
        let (file, tell) = (carried.place.path.clone(), server.size_teller());
        let serves = serving(move || server.run())?;
        Ok(Self { file, kind: ShownKind::Mount { carried, holder, stopper }, serves, tell })
    }

    fn of_disk(server: UblkServer, file: PathBuf) -> Obeyed<Self> {
        let (holder, stopper, tell) = (server.holder(), server.stopper(), server.size_teller());
        let place = holder.place().map_err(|why| (Errno::IO, why))?;
        let serves = serving(move || server.run())?;
        Ok(Self { file, kind: ShownKind::Disk { place, holder, stopper }, serves, tell })
    }

    /// Returns the path beside which the device's servers have their files.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns true when another program has taken the file or the disk away.
    pub(super) fn is_over(&self) -> bool {
        self.serves.is_finished()
    }

    /// Takes no further requests from a mount; those of a disk wait for the suspended table.
    pub(super) fn hold(&self) -> Obeyed<()> {
        match &self.kind {
            ShownKind::Mount { holder, .. } => holder.hold(Instant::now() + DRAIN).map_err(|e| {
                holder.go_on();
                refused(Errno::BUSY)(e.into())
            }),
            ShownKind::Disk { .. } => Ok(()),
        }
    }

    /// Takes requests again, or those of another server's mount or disk for the first time.
    pub(super) fn go_on(&self) {
        match &self.kind {
            ShownKind::Mount { holder, .. } => holder.go_on(),
            ShownKind::Disk { holder, .. } => holder.go_on(),
        }
    }

    /// Gives the kernel this size.
    pub(super) fn tell_size(&self, size: u64) {
        if let Some(why) = (self.tell)(0, size) {
            log::warn!("{why}");
        }
    }

    /// Lets go of a suspended table's mount or disk, for another server.
    pub(super) fn let_go(&self) -> Obeyed<(CarriedPlace, Option<OwnedFd>)> {
        if let ShownKind::Disk { holder, .. } = &self.kind {
            holder.let_go(Instant::now() + PASSED_ON).map_err(failed)?;
        }
        self.carried()
    }

    fn carried(&self) -> Obeyed<(CarriedPlace, Option<OwnedFd>)> {
        match &self.kind {
            ShownKind::Mount { carried, .. } => {
                let fd = carried.device.try_clone().map_err(|e| (Errno::IO, e.to_string()))?;
                Ok((CarriedPlace::Mount(Box::new(carried.place.clone())), Some(fd)))
            }
            ShownKind::Disk { place, .. } => {
                Ok((CarriedPlace::Disk { place: place.clone(), file: self.file.clone() }, None))
            }
        }
    }

    /// Does all of [`Shown::go_on`] that can fail.
    fn recover(&self) -> Obeyed<()> {
        match &self.kind {
            ShownKind::Mount { .. } => Ok(()),
            ShownKind::Disk { holder, .. } => holder.recover(Instant::now() + PASSED_ON).map_err(failed),
        }
    }

    /// Lets go of what another server is to resume.
    pub(super) fn abandon(self) {
        match self.kind {
            // Paused threads would unmount the file as they end.
            ShownKind::Mount { .. } => std::mem::forget(self),
            ShownKind::Disk { holder, stopper, .. } => {
                if let Err(e) = holder.let_go(Instant::now() + PASSED_ON) {
                    log::error!("{}", Error::from(e).what());
                }
                stopper.stop();
                ended(self.serves);
            }
        }
    }

    /// Lets go of it for another table in this process: what that one resumes.
    pub(super) fn pass_on(self) -> Obeyed<(CarriedPlace, Vec<OwnedFd>)> {
        let (place, fd) = self.carried()?;
        self.abandon();
        Ok((place, fd.into_iter().collect()))
    }

    /// Takes a disk away, unless a program has claimed it.
    pub(super) fn close_disk(&self) -> Obeyed<()> {
        match &self.kind {
            ShownKind::Mount { .. } => Err((Errno::INVAL, "it is shown as a file".into())),
            ShownKind::Disk { holder, .. } => holder.close(Instant::now() + DRAIN).map_err(failed),
        }
    }

    /// Takes the file or the disk away.
    pub(super) fn stop(self) {
        match &self.kind {
            ShownKind::Mount { stopper, .. } => stopper.stop(),
            ShownKind::Disk { stopper, .. } => stopper.stop(),
        }
        ended(self.serves);
    }

    /// Waits until another program takes it away.
    pub(super) fn wait(self) {
        ended(self.serves);
    }
}

/// Waits for the thread that serves.
fn ended(serves: JoinHandle<()>) {
    if serves.join().is_err() {
        log::error!("the thread that served the table has panicked");
    }
}

/// Serves in a thread.
fn serving(run: impl FnOnce() -> underseal_export::Result<()> + Send + 'static) -> Obeyed<JoinHandle<()>> {
    let serve = move || {
        if let Err(e) = run() {
            log::error!("{}", Error::from(e).what());
        }
    };
    let serves = thread::Builder::new().name("serves".into()).spawn(serve);
    serves.map_err(|e| (Errno::AGAIN, e.to_string()))
}

/// Returns the mount's settings. The kernel caches the block device's pages; it must not cache the
/// file's, too, which may later show another table.
fn config() -> FuseConfig {
    FuseConfig {
        cache: false,
        // While a device is suspended its file answers nothing, and the whole host's `losetup` asks
        // for the attributes of loop devices' files.
        attributes_valid: Duration::from_secs(365 * 24 * 3600),
        // Another table's server may take the mount, which the kernel cannot do through io_uring.
        io_uring: false,
        ..FuseConfig::default()
    }
}
