//! The sockets of NBD: planned before the passphrase is asked for, bound after it.

use std::path::PathBuf;

use nix::unistd::Group;
use underseal_export::control::{Directory, Name};
use underseal_export::net::{Found, Listener, SocketAccess, activated};

use crate::cli::{Nbd, ServeArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The planned sockets.
pub(super) struct Sockets {
    endpoints: Vec<Found>,
    /// The volume's name, if its socket is in the runtime folder by default.
    own: Option<Name>,
    access: SocketAccess,
    handed_over: Vec<Listener>,
    are_handed_over: bool,
}

impl Sockets {
    /// Takes the sockets from systemd, and refuses impossible options before the passphrase is
    /// asked for. Fails with `Usage`.
    pub(super) fn plan(args: &ServeArgs, name: &Name) -> Result<Self> {
        let handed_over = activated()?;
        let are_handed_over = !handed_over.is_empty();
        if args.nbd.contains(&Nbd::Systemd) && !are_handed_over {
            return Err(Error::usage("no socket was handed over (LISTEN_FDS and LISTEN_PID)")
                .with_remedy("a systemd unit with ListenStream=, or systemd-socket-activate"));
        }
        let access = access(args)?;
        let ways = [args.mounts(), args.ublk, args.vhost_user.path.is_some(), are_handed_over];
        let own = (args.nbd.is_empty() && !ways.contains(&true)).then(|| name.clone());
        if args.daemon && are_handed_over {
            return Err(Error::usage("systemd waits for this process, so it cannot go to the background")
                .with_remedy("without --daemon"));
        }
        let endpoints = args.nbd.iter().filter_map(|nbd| match nbd {
            Nbd::At(endpoint) => Some(Found::look_up(endpoint).map(|found| found.with_access(access))),
            Nbd::Systemd => None,
        });
        let endpoints = endpoints.collect::<underseal_export::Result<_>>()?;
        Ok(Self { endpoints, own, access, handed_over, are_handed_over })
    }

    pub(super) fn are_handed_over(&self) -> bool {
        self.are_handed_over
    }

    /// Returns who may connect.
    pub(super) fn access(&self) -> SocketAccess {
        self.access
    }

    /// Binds the sockets and listens. Also returns the path of the default socket. Fails with
    /// `Failed`, which names the socket.
    pub(super) fn listen(&mut self) -> Result<(Vec<Listener>, Option<PathBuf>)> {
        if let Some(name) = &self.own {
            let (listeners, path) = Directory::of_user().listen_for_clients(name, self.access)?;
            return Ok((listeners, Some(path)));
        }
        let mut listeners = std::mem::take(&mut self.handed_over);
        for endpoint in &self.endpoints {
            listeners.extend(endpoint.listen()?);
        }
        Ok((listeners, None))
    }
}

fn access(args: &ServeArgs) -> Result<SocketAccess> {
    let group = args.socket_group.as_deref().map(group).transpose()?;
    Ok(SocketAccess { mode: args.socket_mode, group })
}

/// Finds a group's number.
fn group(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(Error::usage(format!("there is no group {text:?}")).with_remedy("`getent group`")),
        Err(e) => {
            Err(Error::new(Exit::Failed, format!("the group {text:?} cannot be looked up")).because(&e))
        }
    }
}
