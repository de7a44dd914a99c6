//! The state that a server keeps for a handover of its volume.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use underseal_device::{Device, FileDevice};
use underseal_export::control::{OldServer, Origin, ServerExports};
use underseal_sandbox::Helper;

use super::control::Sides;
use crate::cli::ServeArgs;
use crate::{logging, notify};

/// The parts of a served volume.
pub(super) struct Serving {
    /// The image, if it is a file or a block device.
    pub(super) image: Option<Arc<FileDevice>>,
    /// True when the volume has an unfinished reencryption that this process cannot resume.
    pub(super) unfinished: bool,
    /// True when an integrity layer lies between volume and image.
    pub(super) layers: bool,
    /// The path of a detached header.
    pub(super) header: Option<PathBuf>,
    pub(super) exports: ServerExports,
}

/// Returns how this process was started, or why a new server could not be started in this way.
pub(super) fn origin(args: &ServeArgs) -> Result<Origin, String> {
    let words = args.origin.as_ref().ok_or("only what `underseal open` serves can be handed over yet")?;
    let arguments = words.iter().map(|word| word.to_str().map(str::to_owned)).collect::<Option<_>>();
    let arguments = arguments.ok_or("an argument of it is no text, and cannot be handed over")?;
    let folder = std::env::current_dir().ok().and_then(|path| path.to_str().map(str::to_owned));
    let folder = folder.ok_or("the folder that it was started in is gone, or its name is no text")?;
    Ok(Origin { arguments, folder })
}

/// Returns the old server's side of a handover, or why the volume cannot be handed over.
pub(super) fn of(
    args: &ServeArgs,
    serving: Serving,
    origin: Result<Origin, String>,
) -> Result<Arc<OldServer>, String> {
    let Serving { image, unfinished, layers, header, exports } = serving;
    let origin = origin?;
    let in_the_way = [
        (!args.control.hand_over, "it was opened without --hand-over"),
        (std::process::id() == 1, "its server is the first process of a container, which ends with it"),
        (args.tls_certificates.is_some(), "TLS sessions cannot be handed over"),
        (layers, "the integrity layer below it cannot be handed over yet"),
        (unfinished, "it is in the middle of a reencryption"),
    ];
    if let Some((_, why)) = in_the_way.into_iter().find(|(is, _)| *is) {
        return Err(why.to_owned());
    }
    let image = image.ok_or(
        "its image is neither a file nor a block device of this machine: this cannot be handed over yet",
    )?;
    let end = |pid| {
        notify::handed_over(pid);
        // A thread of this process may still wait for an answer of the new server.
        if let Some(helper) = Helper::get() {
            let _ = helper.handed_over();
        }
        // No cleanup: sockets, files and locks belong to the new server.
        std::process::exit(0)
    };
    let header = header.and_then(|path| std::path::absolute(path).ok());
    let locked = image.clone();
    let apart = move || {
        // Open as the image is: the new server believes no descriptor that permits less.
        let writes = !locked.geometry().read_only;
        let opened = |path: &PathBuf| File::options().read(true).write(writes).open(path).ok();
        let header = header.as_ref().and_then(opened).map(OwnedFd::from);
        // The file below a loop device, with its lock.
        let below = locked.kept_open().and_then(|file| file.try_clone().ok()).map(OwnedFd::from);
        header.into_iter().chain(below).chain(logging::open_file()).collect()
    };
    Ok(Arc::new(OldServer::new(image, origin, exports, notify::supervised(), apart, end)))
}

/// Opens the volume for handovers.
pub(super) fn gates(old_server: Option<&OldServer>, sides: &Sides) {
    if let (Some(old_server), Some((control, metrics))) = (old_server, sides.gates()) {
        old_server.with_gates(control, metrics);
    }
}
