//! The ways in which a volume is reached, which go to another process together.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::giver::{INSTEAD, failed};
use super::line::{Line, MOST_FDS};
use super::offer::{CarriedConnection, Given};
use super::protocol::{Refusal, RefusalKind};
use super::volume::Answer;
use crate::fuse::{CarriedMount, FuseHolder, MountPlace};
use crate::nbd::{self, Carried};
use crate::net::CarriedListener;
use crate::ublk::{UblkHolder, UblkPlace};
use crate::vhost_user::{CarriedFrontEnd, VhostUserHolder};

/// What a volume is served by, as far as there is any.
#[derive(Debug, Default)]
pub struct Ways {
    /// The NBD server.
    pub nbd: Option<nbd::Holder>,
    /// The mount, and what brings that to rest.
    pub mount: Option<(CarriedMount, FuseHolder)>,
    /// What lets go of the block device.
    pub ublk: Option<UblkHolder>,
    /// What brings the virtual machine's front end to rest.
    pub machine: Option<VhostUserHolder>,
}

/// What another process finds each of them by.
pub(super) struct Places {
    pub(super) nbd: Vec<CarriedListener>,
    pub(super) machine: Vec<CarriedListener>,
    pub(super) mount: Option<MountPlace>,
    pub(super) ublk: Option<UblkPlace>,
}

/// What their clients were left with.
pub(super) struct AtRest {
    connections: Vec<Carried>,
    /// Where there is a socket for one: the front end, if it is there.
    machine: Option<Option<CarriedFrontEnd>>,
}

impl Ways {
    /// What there is to give, if nothing is in the way of it. What is unmounted or deleted nobody
    /// has any more.
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

    /// Has all clients wait, with nothing of them in flight.
    pub(super) fn hold(&self, until: Instant) -> crate::Result<AtRest> {
        let connections = self.nbd.as_ref().map_or(Ok(vec![]), |nbd| nbd.hold(until))?;
        self.mount.as_ref().map_or(Ok(()), |(_, holder)| holder.hold(until))?;
        let machine = self.machine.as_ref().map(|machine| machine.hold(until)).transpose()?;
        Ok(AtRest { connections, machine })
    }

    /// Lets go of what only one process can have, once the volume is suspended.
    pub(super) fn let_go(&self, places: &Places, until: Instant) -> crate::Result<()> {
        let ublk = self.ublk.as_ref().filter(|_| places.ublk.is_some());
        ublk.map_or(Ok(()), |ublk| ublk.let_go(until))
    }

    /// As if nothing had been: clients are served by this process.
    pub(super) fn go_on(&self) {
        self.nbd.iter().for_each(nbd::Holder::go_on);
        self.mount.iter().for_each(|(_, mount)| mount.go_on());
        self.machine.iter().for_each(VhostUserHolder::go_on);
        self.ublk.iter().for_each(UblkHolder::go_on);
    }
}

impl AtRest {
    /// Tells the other process all that it needs to go on.
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

/// A virtual machine's front end, if there is one, and its descriptors.
fn send_machine(line: &Line, front: Option<CarriedFrontEnd>, until: Instant) -> crate::Result<()> {
    let (agreed, fds) = front.map_or((None, Vec::new()), |front| (Some(Box::new(front.agreed)), front.fds));
    line.send(&Given::Machine(agreed), &[], &[], until)?;
    fds.chunks(MOST_FDS).try_for_each(|fds| {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        line.send(&Given::Descriptors, &fds, &[], until)
    })
}
