//! The volume as a kernel block device.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use underseal_datapath::Mapping;
use underseal_export::control::Name;
use underseal_export::ublk::{self, UblkConfig, UblkServer};

use crate::cli::ServeArgs;
use crate::error::Result;

/// The most hardware queues by default: one thread keeps up with several processors.
const QUEUES: u16 = 4;

/// Requests in flight on each.
const DEPTH: u16 = 128;

/// Checks that ublk is usable, before the passphrase is asked for.
pub(super) fn plan(args: &ServeArgs) -> Result<()> {
    if args.ublk {
        ublk::available()?;
    }
    Ok(())
}

/// Makes the device, if it was requested. Fails when the kernel refuses, or the device is in use.
pub(super) fn start(args: &ServeArgs, image: &Path, mapping: &Arc<Mapping>) -> Result<Option<UblkServer>> {
    if !args.ublk {
        return Ok(None);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = args.ublk_queues.unwrap_or_else(|| u16::try_from(processors).unwrap_or(QUEUES).min(QUEUES));
    let name = args.control.name.clone().unwrap_or_else(|| Name::of_file(image));
    let whole = std::fs::canonicalize(image).unwrap_or_else(|_| image.into());
    let config = UblkConfig {
        id: args.ublk_id,
        queues,
        depth: DEPTH,
        name: name.as_str().into(),
        identity: ublk::identity(whole.as_os_str().as_bytes()),
        unprivileged: !rustix::process::geteuid().is_root(),
        drain_timeout: UblkConfig::DRAINS,
        for_tables: false,
        read_only: false,
    };
    Ok(Some(UblkServer::start(mapping.clone(), config)?))
}

/// Returns the paths where clients find the volume.
pub(super) fn paths(mount: Option<&Path>, ublk: Option<&UblkServer>) -> Vec<String> {
    let device = ublk.map(UblkServer::device);
    let link = ublk.and_then(UblkServer::link);
    [mount, device, link].into_iter().flatten().map(|path| path.display().to_string()).collect()
}
