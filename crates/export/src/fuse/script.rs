//! The kernel's side of a mount as a script, for fuzzing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use underseal_datapath::Mapping;

use super::files::Files;
use super::server::{FuseConfig, Shared};
use super::worker::Worker;
use crate::Error;

/// A thread that serves a volume, and a script in the kernel's place.
#[doc(hidden)]
pub type Script = underseal_fuse::script::KernelScript<Error>;

/// Serves the volume as one file, or its segments as the files of a folder.
///
/// # Errors
/// When the system has no descriptor or thread left.
#[doc(hidden)]
pub fn start(mapping: Arc<Mapping>, folder: bool, cache: bool) -> io::Result<Script> {
    let files = if folder { Files::folder(&mapping) } else { Files::one(&mapping) };
    let config = FuseConfig { threads: 1, cache, ..FuseConfig::default() };
    let shared = Arc::new(Shared::new(mapping, files, &config, PathBuf::from("script"), false)?);
    Script::start(false, move |channel| Worker::new(shared, 0, channel, None)?.run())
}
