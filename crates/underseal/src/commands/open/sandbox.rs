//! What a volume's server keeps of its privileges.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use underseal_datapath::Mapping;
use underseal_device::restrictions;
use underseal_export::control::status::Sandbox;
use underseal_export::fuse::MountPoint;
use underseal_export::net::Endpoint;
use underseal_sandbox::{Helper, Needs, Server, State};

use super::control;
use crate::cli::{Nbd, ServeArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Remote, address};

/// Where cryptsetup locks the headers of block devices, and reencryptions.
const LOCKS: &str = "/run/cryptsetup";

/// Before there are threads, keys and rings: starts the process that unmounts.
///
/// # Errors
/// `Failed` when there is no process for it.
pub(super) fn prepare(args: &ServeArgs, mount_point: Option<&MountPoint>) -> Result<()> {
    if args.no_sandbox {
        restrictions::forgo();
        return Ok(());
    }
    let Some(point) = mount_point else { return Ok(()) };
    Helper::start(|lazily| point.unmount(lazily))
        .map_err(|e| Error::new(Exit::Failed, "no process to unmount with").because(&e))
}

/// Gives up what is not needed to serve `lower`, as `disk` where it is a block device of the kernel's too. None where all of it
/// is to be kept. `locks` is whether it locks reencryptions.
///
/// # Errors
/// `Usage`, as for opening, where a lower name is none.
pub(super) fn enter(
    args: &ServeArgs,
    lower: &[PathBuf],
    disk: Option<PathBuf>,
    mapping: &Mapping,
    locks: bool,
) -> Result<Option<Sandbox>> {
    if args.no_sandbox {
        return Ok(None);
    }
    if locks {
        // Who may not make it may not lock there either.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(LOCKS);
    }
    let locks = locks.then(|| LOCKS.into());
    let state = underseal_sandbox::enter(&Needs { ublk: disk, locks, ..needs(args, lower, mapping)? });
    Ok(Some(shown(state)))
}

fn needs(args: &ServeArgs, lower: &[PathBuf], mapping: &Mapping) -> Result<Needs> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let unix = args.nbd.iter().filter_map(|nbd| match nbd {
        Nbd::At(Endpoint::Unix(path)) => Some(absolute(path)),
        _ => None,
    });
    let vhost_user = args.vhost_user.path.as_deref().map(absolute);
    // The name that it got in there does not matter: its folder does.
    let control = control::directory().join("volume.sock");
    let mut needs = Needs {
        read_only: mapping.read_only(),
        removed: unix.chain(vhost_user).chain([absolute(&control)]).collect(),
        pid_file: args.pid_file.as_deref().map(absolute),
        log_file: args.log_file.as_deref().filter(|_| args.daemon).map(absolute),
        certificates: args.tls_certificates.as_deref().map(absolute),
        vhost_user: args.vhost_user.path.is_some(),
        hand_over: args.control.hand_over,
        high_priority: mapping.policy().high_priority,
        ..Needs::default()
    };
    for name in lower {
        match address(name)? {
            None => needs.images.push(absolute(name)),
            Some(Remote::Nbd(server)) => needs.servers.push(match server.socket_or_port() {
                Ok(path) => Server::Unix(path.to_owned()),
                Err(port) => Server::Tcp(port),
            }),
            Some(Remote::Rbd(_)) => needs.cluster = true,
        }
    }
    Ok(needs)
}

/// As `status` tells it.
fn shown(state: State) -> Sandbox {
    let State { capabilities, bounded, no_new_privileges, landlock, seccomp, any_port, missing } = state;
    let capabilities = capabilities.into_iter().map(str::to_owned).collect();
    let io_uring = restrictions::in_force().unwrap_or(true);
    Sandbox { capabilities, bounded, no_new_privileges, landlock, io_uring, seccomp, any_port, missing }
}
