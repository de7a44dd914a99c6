//! The volume as a disk of a virtual machine.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underseal_datapath::Mapping;
use underseal_export::control::{Given, Line};
use underseal_export::net::{Listener, SocketAccess};
use underseal_export::vhost_user::{CarriedFrontEnd, VhostUserConfig, VhostUserServer};

use super::new_server::not_given;
use crate::cli::VhostUserArgs;
use crate::error::Result;

/// Listens, if it was requested. The guest sees the image's name as the disk's serial number. Fails
/// when the path cannot be listened on, or virtio cannot describe the volume.
pub(super) fn listen(
    args: &VhostUserArgs,
    access: SocketAccess,
    image: &Path,
    mapping: &Arc<Mapping>,
) -> Result<Option<VhostUserServer>> {
    let Some(path) = &args.path else { return Ok(None) };
    Ok(Some(VhostUserServer::listen(mapping.clone(), path, &config(args, access, image))?))
}

/// Serves on the listening sockets of an old server. Fails as [`listen`].
pub(super) fn take_over(
    args: &VhostUserArgs,
    listeners: Vec<Listener>,
    image: &Path,
    mapping: &Arc<Mapping>,
) -> Result<Option<VhostUserServer>> {
    let Some(path) = args.path.as_ref().filter(|_| !listeners.is_empty()) else { return Ok(None) };
    let config = config(args, SocketAccess::default(), image);
    Ok(Some(VhostUserServer::take_over(mapping.clone(), path, listeners, &config)?))
}

fn config(args: &VhostUserArgs, access: SocketAccess, image: &Path) -> VhostUserConfig {
    let serial = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    VhostUserConfig { queues: args.queues, serial, access, drain_timeout: Duration::from_secs(30) }
}

/// Receives the state of the paused front end, if one is connected. Fails when the old server
/// refuses the handover, or sends an unexpected message.
pub(super) fn at_rest(line: &Line, until: Instant) -> Result<Option<CarriedFrontEnd>> {
    let agreed = match line.receive(until)?.message {
        Given::Machine(agreed) => agreed,
        other => return Err(not_given(other)),
    };
    let Some(agreed) = agreed else { return Ok(None) };
    let mut fds = Vec::new();
    while fds.len() < agreed.descriptors {
        let heard = line.receive(until)?;
        match heard.message {
            Given::Descriptors if !heard.fds.is_empty() => fds.extend(heard.fds),
            other => return Err(not_given(other)),
        }
    }
    Ok(Some(CarriedFrontEnd { agreed: *agreed, fds }))
}

/// Returns the address for people.
pub(super) fn address(args: &VhostUserArgs) -> Option<String> {
    let path = args.path.as_ref()?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Some(format!("vhost-user:{}", path.display()))
}
