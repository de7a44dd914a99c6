//! The locks of an open volume, beside that of its image.

use std::fs::File;

use underseal_device::lock_header;
use underseal_volume::ReencryptionLock;

use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::lower::same_file;
use crate::reencryption::Where;

/// Locks that exclude other programs for as long as a volume is open.
#[derive(Default)]
pub(crate) struct Locks {
    /// Locks of reencryptions, where this process cannot reencrypt.
    pub(crate) reencryption: Vec<ReencryptionLock>,
    /// The detached header, locked as the image of a reader. The image's own lock does not exclude
    /// programs that would make another volume of the header alone.
    _header: Vec<File>,
}

impl Locks {
    pub(super) fn new(reencryption: Vec<ReencryptionLock>, header: Vec<File>) -> Self {
        Self { reencryption, _header: header }
    }
}

/// Opens the detached header, and locks it until the files are closed.
pub(super) fn detached_header(args: &VolumeArgs, read_only: bool) -> Result<(Option<Where>, Vec<File>)> {
    let Some(path) = &args.header else { return Ok((None, Vec::new())) };
    let header = Where::open(path, read_only)?;
    let locks = match &header {
        // The image is locked already.
        Where::File(file) if !same_file(path, &args.image) => {
            lock_header(file.file()).map_err(|e| Error::from(e).within(path.display()))?
        }
        _ => Vec::new(),
    };
    Ok((Some(header), locks))
}
