//! The exports of a volume, which a handover passes on together.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::line::{Line, MOST_FDS};
use super::offer::{CarriedConnection, Given};
use super::old_server::{INSTEAD, failed};
use super::protocol::{Refusal, RefusalKind};
use super::volume::Answer;
use crate::fuse::{CarriedMount, FuseHolder, MountPlace};
use crate::nbd::{self, Carried};
use crate::net::CarriedListener;
use crate::ublk::{UblkHolder, UblkPlace};
use crate::vhost_user::{CarriedFrontEnd, VhostUserHolder};

/// A server's exports.
#[derive(Debug, Default)]
pub struct ServerExports {
    /// The NBD server.
    pub nbd: Option<nbd::Holder>,
    /// The mount, and the means to pause it.
    pub mount: Option<(CarriedMount, FuseHolder)>,
    /// The means to release the block device.
    pub ublk: Option<UblkHolder>,
    /// The means to pause the virtual machine's front end.
    pub machine: Option<VhostUserHolder>,
}

/// Where the new server finds each export.
pub(super) struct Places {
    pub(super) nbd: Vec<CarriedListener>,
    pub(super) machine: Vec<CarriedListener>,
    pub(super) mount: Option<MountPlace>,
    pub(super) ublk: Option<UblkPlace>,
}

/// The paused exports' clients.
pub(super) struct AtRest {
    connections: Vec<Carried>,
    /// `Some` when the volume has a vhost-user socket: its front end, if one is connected.
    machine: Option<Option<CarriedFrontEnd>>,
}

impl ServerExports {
    /// Returns the exports to offer, or refuses when one cannot be handed over. Sockets and mounts
    /// that were removed are left out.
    pub(super) fn places(&self) -> Answer<Places> {
        let no = |why: String| Refusal::new(RefusalKind::Unsupported, why, INSTEAD);
        if self.nbd.as_ref().is_some_and(nbd::Holder::over_tls) {
            return Err(no("a TLS session cannot be handed over".into()));
        }
        let listening = |listeners: crate::Result<Vec<CarriedListener>>| listeners.map_err(|e| failed(&e));
        let nbd = self.nbd.as_ref().map_or(Ok(vec![]), |nbd| listening(nbd.listeners()))?;
        let machine = self.machine.as_ref().map_or(Ok(vec![]), |machine| listening(machine.listeners()))?;
        let mount = self.mount.as_ref().filter(|(_, holder)| !holder.is_gone());
        let mount = mount.map(|(mount, _)| mount.place.clone());
        if mount.as_ref().is_some_and(|mount| mount.path.to_str().is_none()) {
            return Err(no("the path of its mount is no text".into()));
        }
        let ublk = self.ublk.as_ref().filter(|holder| !holder.is_gone()).map(UblkHolder::place).transpose();
        Ok(Places { nbd, machine, mount, ublk: ublk.map_err(no)? })
    }

    /// Pauses all exports, until no request of a client is in flight.
    pub(super) fn hold(&self, until: Instant) -> crate::Result<AtRest> {
        let connections = self.nbd.as_ref().map_or(Ok(vec![]), |nbd| nbd.hold(until))?;
        self.mount.as_ref().map_or(Ok(()), |(_, holder)| holder.hold(until))?;
        let machine = self.machine.as_ref().map(|machine| machine.hold(until)).transpose()?;
        Ok(AtRest { connections, machine })
    }

    /// Releases the block device, which only one process can have, once the volume is suspended.
    pub(super) fn let_go(&self, places: &Places, until: Instant) -> crate::Result<()> {
        let ublk = self.ublk.as_ref().filter(|_| places.ublk.is_some());
        ublk.map_or(Ok(()), |ublk| ublk.let_go(until))
    }

    /// Resumes all exports in this process.
    pub(super) fn go_on(&self) {
        self.nbd.iter().for_each(nbd::Holder::go_on);
        self.mount.iter().for_each(|(_, mount)| mount.go_on());
        self.machine.iter().for_each(VhostUserHolder::go_on);
        self.ublk.iter().for_each(UblkHolder::go_on);
    }
}

impl AtRest {
    /// Sends the paused clients to the new server.
    pub(super) fn send(self, line: &Line, until: Instant) -> crate::Result<()> {
        line.send(&Given::Rests(self.connections.len()), &[], &[], until)?;
        for one in &self.connections {
            let fds: [BorrowedFd<'_>; 1] = [one.socket.as_fd()];
            let message = Given::Connection(CarriedConnection::of(&one.negotiated, one.ahead.len()));
            line.send(&message, &fds, &[&one.ahead, &one.owed], until)?;
        }
        self.machine.map_or(Ok(()), |front| send_machine(line, front, until))
    }
}

/// Sends a virtual machine's front end, if one is connected, and its descriptors.
fn send_machine(line: &Line, front: Option<CarriedFrontEnd>, until: Instant) -> crate::Result<()> {
    let (agreed, fds) = front.map_or((None, Vec::new()), |front| (Some(Box::new(front.agreed)), front.fds));
    line.send(&Given::Machine(agreed), &[], &[], until)?;
    fds.chunks(MOST_FDS).try_for_each(|fds| {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        line.send(&Given::Descriptors, &fds, &[], until)
    })
}
