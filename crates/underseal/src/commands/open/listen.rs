//! The sockets that clients connect to: known before the passphrase is asked for, bound after it.

use underseal_export::net::{Found, Listener, activated};

use crate::cli::{Nbd, ServeArgs};
use crate::error::{Error, Result};

/// What was asked for.
pub(super) struct Sockets {
    endpoints: Vec<Found>,
    handed_over: Vec<Listener>,
    are_handed_over: bool,
}

impl Sockets {
    /// Takes over what systemd hands over, and refuses what cannot work before anybody types a passphrase.
    ///
    /// # Errors
    /// `Usage`.
    pub(super) fn plan(args: &ServeArgs) -> Result<Self> {
        let handed_over = activated()?;
        let are_handed_over = !handed_over.is_empty();
        if args.nbd.contains(&Nbd::Systemd) && !are_handed_over {
            return Err(Error::usage("no socket was handed over (LISTEN_FDS and LISTEN_PID)")
                .with_remedy("a systemd unit with ListenStream=, or systemd-socket-activate"));
        }
        let ways = [args.fuse.is_some(), args.ublk, args.vhost_user.path.is_some(), are_handed_over];
        if args.nbd.is_empty() && !ways.contains(&true) {
            return Err(Error::usage("where is the volume to be served?")
                .with_remedy("--nbd unix:PATH, --fuse PATH, --ublk or --vhost-user PATH"));
        }
        if args.daemon && are_handed_over {
            return Err(Error::usage("who hands sockets over waits for this very process")
                .with_remedy("without --daemon"));
        }
        let endpoints = args.nbd.iter().filter_map(|nbd| match nbd {
            Nbd::At(endpoint) => Some(Found::look_up(endpoint)),
            Nbd::Systemd => None,
        });
        let endpoints = endpoints.collect::<underseal_export::Result<_>>()?;
        Ok(Self { endpoints, handed_over, are_handed_over })
    }

    pub(super) fn are_handed_over(&self) -> bool {
        self.are_handed_over
    }

    /// Binds and listens.
    ///
    /// # Errors
    /// `Failed` names the one that cannot be listened on.
    pub(super) fn listen(&mut self) -> Result<Vec<Listener>> {
        let mut listeners = std::mem::take(&mut self.handed_over);
        for endpoint in &self.endpoints {
            listeners.extend(endpoint.listen()?);
        }
        Ok(listeners)
    }
}
