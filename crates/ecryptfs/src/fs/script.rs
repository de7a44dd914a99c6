//! Requests as from a kernel, without a kernel: for fuzzing.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};

use super::dispatch::{FsWorker, ReplyPath};
use super::{Fs, MountConfig, Sealing, identity};

/// A thread that serves a folder, and a substitute for the kernel.
#[doc(hidden)]
pub type FsScript = underseal_fuse::script::KernelScript<io::Error>;

/// Serves a lower folder.
///
/// # Errors
/// Any, when the folder does not exist, or the system refuses.
#[doc(hidden)]
pub fn start(lower: &Path, sealing: Option<Sealing>) -> io::Result<FsScript> {
    let root = open(lower, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let fs = Arc::new(Fs::new(root, lower, sealing, &MountConfig::default())?);
    FsScript::start(true, move |channel| {
        identity::detach()?;
        FsWorker::new(fs, ReplyPath::Channel(Arc::new(channel)), None).run()
    })
}
