//! What a volume's server keeps of its privileges.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use underseal_datapath::Mapping;
use underseal_device::restrictions;
use underseal_export::control::status::Sandbox;
use underseal_export::fuse::MountPoint;
use underseal_sandbox::{Helper, Needs, OfMount, Rings, State, will_open_log};

use crate::cli::ServeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Remote, address};

/// Where cryptsetup locks the headers of block devices, and reencryptions.
const LOCKS: &str = "/run/cryptsetup";

/// Before there are threads, keys and rings: starts the process that unmounts, removes files, opens
/// the log again and connects.
///
/// # Errors
/// `Failed` when there is no process for it.
pub(super) fn prepare(args: &ServeArgs, mount_point: Option<&MountPoint>) -> Result<()> {
    if args.no_sandbox {
        restrictions::forgo();
        return Ok(());
    }
    let no_process = |e| Error::new(Exit::Failed, "no process for what the sandbox forbids").because(&e);
    match mount_point.map(MountPoint::point) {
        None => Helper::start(None, Some(restrictions::for_server)),
        Some(point) => {
            let answer = point.answers();
            let mount = OfMount { answer: &answer, keeps: &point.descriptors() };
            Helper::start(Some(mount), Some(restrictions::for_server))
        }
    }
    .map_err(no_process)?;
    if let Some(path) = args.log_file.as_deref().filter(|_| args.daemon) {
        will_open_log(&absolute(path));
    }
    Ok(())
}

/// Gives up what is not needed to serve `lower`, as `disk` where it is a block device of the
/// kernel's too. None where all of it is to be kept. `locks` is whether it locks reencryptions.
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
    if let Err(e) = underseal_device::keep_ring_for_flushes() {
        log::warn!("the volume cannot be flushed once the sandbox's helper is gone: {e}");
    }
    let state = underseal_sandbox::enter(&Needs { ublk: disk, locks, ..needs(args, lower, mapping)? });
    Ok(Some(shown(state)))
}

fn needs(args: &ServeArgs, lower: &[PathBuf], mapping: &Mapping) -> Result<Needs> {
    let mut needs = Needs {
        read_only: mapping.read_only(),
        certificates: args.tls_certificates.as_deref().and_then(|folder| std::path::absolute(folder).ok()),
        vhost_user: args.vhost_user.path.is_some(),
        hand_over: args.control.hand_over,
        high_priority: mapping.policy().high_priority,
        // No kernel before 5.10 restricts any.
        rings: if restrictions::in_force() == Some(false) { Rings::Any } else { Rings::OfHelper },
        ..Needs::default()
    };
    for name in lower {
        match address(name)? {
            None => needs.images.push(absolute(name)),
            // The helper connects to it.
            Some(Remote::Nbd(_)) => {}
            Some(Remote::Rbd(_)) => needs.cluster = true,
        }
    }
    Ok(needs)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// As `status` tells it.
fn shown(state: State) -> Sandbox {
    let State { capabilities, bounded, no_new_privileges, landlock, seccomp, rings, any_port, missing } =
        state;
    let capabilities = capabilities.into_iter().map(str::to_owned).collect();
    let io_uring = rings && restrictions::in_force().unwrap_or(true);
    Sandbox { capabilities, bounded, no_new_privileges, landlock, io_uring, seccomp, any_port, missing }
}
