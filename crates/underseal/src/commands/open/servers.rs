//! The servers of a volume's exports: the means to stop them, to tell them a new size and to hand
//! them over, and the functions that serve.

use std::path::PathBuf;
use std::sync::Arc;

use underseal_export::TellSize;
use underseal_export::control::ServerExports;
use underseal_export::fuse::{FuseServer, FuseTransport};
use underseal_export::nbd::{self, Server};
use underseal_export::ublk::UblkServer;
use underseal_export::vhost_user::VhostUserServer;

use super::desktop::{Desktop, DesktopEnd};
use super::serve::aside;
use crate::cli::ServeArgs;
use crate::error::Result;

/// The exports of a volume, which do not serve yet.
pub(super) struct Servers {
    pub(super) nbd: Option<Server>,
    pub(super) fuse: Option<FuseServer>,
    pub(super) ublk: Option<UblkServer>,
    pub(super) vhost_user: Option<VhostUserServer>,
    /// The desktop that shows the mount: its part ends first, while the file is served.
    pub(super) desktop: Option<Arc<Desktop>>,
}

/// An export of a volume: the function that serves it.
pub(super) struct RunningExport {
    pub(super) serve: Box<dyn FnOnce() -> Result<()> + Send>,
    /// True when the end of this export ends the others.
    pub(super) leads: bool,
}

/// The means to stop an export.
#[derive(Clone)]
pub(super) struct ExportStopper {
    pub(super) stop: Arc<dyn Fn() + Send + Sync>,
    /// The cleanup when the process ends without waiting.
    pub(super) abandon: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl RunningExport {
    fn new(serve: impl FnOnce() -> underseal_export::Result<()> + Send + 'static) -> Self {
        Self { serve: Box::new(|| Ok(serve()?)), leads: false }
    }
}

impl ExportStopper {
    fn new(stop: impl Fn() + Send + Sync + 'static) -> Self {
        Self { stop: Arc::new(stop), abandon: None }
    }

    fn of_mount(server: &FuseServer, desktop: Option<Arc<Desktop>>) -> Self {
        let (stopper, last) = (server.stopper(), server.stopper());
        // Unmounting may take long, and a second signal must be noticed meanwhile.
        let stop = move || {
            let (stopper, desktop) = (stopper.clone(), desktop.clone());
            aside("unmount", move || match desktop.map(|desktop| desktop.take_down()) {
                Some(DesktopEnd::Left) => stopper.cut_off(),
                Some(DesktopEnd::TakenDown) | None => stopper.stop(),
            });
        };
        Self { abandon: Some(Arc::new(move || last.abandon())), ..Self::new(stop) }
    }
}

impl Servers {
    /// Returns the means to stop each export.
    pub(super) fn stoppers(&self) -> Vec<ExportStopper> {
        let nbd = self.nbd.as_ref().map(Server::stopper);
        let nbd = nbd.map(|stopper: nbd::Stopper| ExportStopper::new(move || stopper.stop()));
        let fuse = self.fuse.as_ref().map(|server| ExportStopper::of_mount(server, self.desktop.clone()));
        let ublk = self.ublk.as_ref().map(|server| {
            let stopper = server.stopper();
            ExportStopper::new(move || stopper.stop())
        });
        let vhost_user = self.vhost_user.as_ref().map(|server| {
            let stopper = server.stopper();
            ExportStopper::new(move || stopper.stop())
        });
        [nbd, fuse, ublk, vhost_user].into_iter().flatten().collect()
    }

    /// Returns the means to notify clients of a new size, where that is possible.
    pub(super) fn size_tellers(&self) -> Vec<TellSize> {
        let fuse = self.fuse.as_ref().map(FuseServer::size_teller);
        let ublk = self.ublk.as_ref().map(UblkServer::size_teller);
        let vhost_user = self.vhost_user.as_ref().map(VhostUserServer::size_teller);
        [fuse, ublk, vhost_user].into_iter().flatten().collect()
    }

    /// Returns the parts of the exports that a handover passes on. Fails when the mount's device
    /// cannot be passed on.
    pub(super) fn for_handover(&self, args: &ServeArgs) -> Result<ServerExports> {
        let fuse = self.fuse.as_ref().filter(|_| args.control.hand_over);
        let mount = fuse.map(|server| Ok::<_, underseal_export::Error>((server.carried()?, server.holder())));
        Ok(ServerExports {
            nbd: self.nbd.as_ref().map(Server::holder),
            mount: mount.transpose()?,
            ublk: self.ublk.as_ref().map(UblkServer::holder),
            machine: self.vhost_user.as_ref().map(VhostUserServer::holder),
        })
    }

    /// Returns how the kernel passes the mount's requests.
    pub(super) fn transport(&self) -> Option<FuseTransport> {
        self.fuse.as_ref().map(|server| server.transport().clone())
    }

    /// Returns the path of the block device.
    pub(super) fn disk(&self) -> Option<PathBuf> {
        self.ublk.as_ref().map(|server| server.device().to_owned())
    }

    /// Returns the functions that serve.
    pub(super) fn running(self) -> Vec<RunningExport> {
        let leading = |server: Server| RunningExport { leads: true, ..RunningExport::new(|| server.run()) };
        let nbd = self.nbd.map(leading);
        let fuse = self.fuse.map(|server| RunningExport::new(|| server.run()));
        let ublk = self.ublk.map(|server| RunningExport::new(|| server.run()));
        let vhost_user = self.vhost_user.map(|server| RunningExport::new(|| server.run()));
        [nbd, fuse, ublk, vhost_user].into_iter().flatten().collect()
    }
}
