//! The volume as a disk of a virtual machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use underseal_datapath::Mapping;
use underseal_export::net::SocketAccess;
use underseal_export::vhost_user::{VhostUserConfig, VhostUserServer};

use crate::cli::VhostUserArgs;
use crate::error::Result;

/// Listens, if it was asked for. The guest sees the image's name as the disk's serial number.
///
/// # Errors
/// When the path cannot be listened on, or the volume is none that virtio can describe.
pub(super) fn listen(
    args: &VhostUserArgs,
    access: SocketAccess,
    image: &Path,
    mapping: &Arc<Mapping>,
) -> Result<Option<VhostUserServer>> {
    let Some(path) = &args.path else { return Ok(None) };
    let serial = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let config =
        VhostUserConfig { queues: args.queues, serial, access, drain_timeout: Duration::from_secs(30) };
    Ok(Some(VhostUserServer::listen(mapping.clone(), path, &config)?))
}

/// Where it is served, for people.
pub(super) fn address(args: &VhostUserArgs) -> Option<String> {
    let path = args.path.as_ref()?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Some(format!("vhost-user:{}", path.display()))
}
