//! The volume as a block device.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use underseal_datapath::Mapping;
use underseal_export::control::Name;
use underseal_export::ublk::{self, UblkConfig, UblkServer};

use crate::cli::ServeArgs;
use crate::error::Result;

/// Hardware queues, if nobody says otherwise: one thread keeps up with several processors.
const QUEUES: u16 = 4;

/// Requests in flight on each.
const DEPTH: u16 = 128;

/// Looks whether there is ublk before anybody types a passphrase.
///
/// # Errors
/// `Failed` when there is not.
pub(super) fn plan(args: &ServeArgs) -> Result<()> {
    if args.ublk {
        ublk::available()?;
    }
    Ok(())
}

/// Makes the device, where one was asked for.
///
/// # Errors
/// When the kernel refuses, or the device is in use.
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
    };
    Ok(Some(UblkServer::start(mapping.clone(), config)?))
}

/// Where the volume can be found in the file system.
pub(super) fn paths(mount: Option<&Path>, ublk: Option<&UblkServer>) -> Vec<String> {
    let device = ublk.map(UblkServer::device);
    let link = ublk.and_then(UblkServer::link);
    [mount, device, link].into_iter().flatten().map(|path| path.display().to_string()).collect()
}
