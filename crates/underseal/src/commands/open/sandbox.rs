//! The privileges of a volume's server.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use underseal_datapath::Mapping;
use underseal_device::{ErrorKind, restrictions};
use underseal_export::control::status::Sandbox;
use underseal_export::fuse::MountPoint;
use underseal_sandbox::{Asked, Helper, Needs, OfMount, Rings, State};

use crate::cli::ServeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Remote, address};
use crate::{front, logging};

/// The folder of cryptsetup's locks of block devices' headers, and of reencryptions.
const LOCKS: &str = "/run/cryptsetup";

/// Starts the helper before any thread, key or ring exists: it unmounts, removes files, opens the
/// log again and connects. Fails with `Failed` when it cannot be started.
pub(super) fn prepare(args: &ServeArgs, mount_point: Option<&MountPoint>) -> Result<()> {
    if args.no_sandbox {
        restrictions::forgo();
        return Ok(());
    }
    let no_process = |e| Error::new(Exit::Failed, "no process for what the sandbox forbids").because(&e);
    match mount_point.map(MountPoint::point) {
        None => Helper::start(None, Some(restrictions::for_server)),
        Some(point) => {
            let unmount = point.answers();
            let answer = |asked: Asked<'_>| {
                front::before_unmounting(asked);
                unmount(asked)
            };
            let mount = OfMount { answer: &answer, keeps: &point.descriptors() };
            Helper::start(Some(mount), Some(restrictions::for_server))
        }
    }
    .map_err(no_process)?;
    if args.daemon {
        logging::will_reopen();
    }
    Ok(())
}

/// Drops the privileges that are not needed to serve `lower`, and `disk` if the volume is a kernel
/// block device. Returns `None` when all are kept. `locks` is true when the server locks
/// reencryptions. Fails with `Usage` for a malformed lower name, and with `Failed` where no memory
/// is left for a ring.
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
        // If the folder cannot be made, no lock can be taken in it either.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(LOCKS);
    }
    let locks = locks.then(|| LOCKS.into());
    match underseal_device::keep_ring_for_flushes() {
        // No client could be served either, and the volume could not be flushed at its end.
        Err(e) if e.kind() == ErrorKind::Memory => {
            let remedy = "with a higher limit of locked memory (`ulimit -l`, LimitMEMLOCK=)";
            return Err(Error::from(e).with_remedy(remedy));
        }
        Err(e) => log::warn!("the volume cannot be flushed once the sandbox's helper is gone: {e}"),
        Ok(()) => {}
    }
    let state = underseal_sandbox::enter(&Needs { ublk: disk, locks, ..needs(args, lower, mapping)? });
    Ok(Some(shown(state)))
}

fn needs(args: &ServeArgs, lower: &[PathBuf], mapping: &Mapping) -> Result<Needs> {
    let mut needs = Needs {
        // Each queue opens the files again as they are open.
        read_only: mapping.reads_devices_only(),
        certificates: args.tls_certificates.as_deref().and_then(|folder| std::path::absolute(folder).ok()),
        vhost_user: args.vhost_user.path.is_some(),
        hand_over: args.control.hand_over,
        high_priority: mapping.policy().high_priority,
        // Linux before 5.10 supports no restrictions.
        rings: if restrictions::in_force() == Some(false) { Rings::Any } else { Rings::OfHelper },
        ..Needs::default()
    };
    for name in lower {
        match address(name)? {
            None => needs.images.push(absolute(name)),
            // The helper connects to the server.
            Some(Remote::Nbd(_)) => {}
            Some(Remote::Rbd(_)) => needs.cluster = true,
        }
    }
    Ok(needs)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the sandbox in the form of `status`.
fn shown(state: State) -> Sandbox {
    let State { capabilities, bounded, no_new_privileges, landlock, seccomp, rings, any_port, missing } =
        state;
    let capabilities = capabilities.into_iter().map(str::to_owned).collect();
    let io_uring = rings && restrictions::in_force().unwrap_or(true);
    Sandbox { capabilities, bounded, no_new_privileges, landlock, io_uring, seccomp, any_port, missing }
}
