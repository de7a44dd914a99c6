//! `underseal write`.

use std::fs::File;
use std::io::{Seek, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use underseal_volume::ReadAt;

use super::same_file;
use crate::cli::WriteArgs;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::size;
use crate::transfer;
use crate::volume::{self, Access};

pub(super) fn run(args: &WriteArgs, quiet: bool) -> Result<()> {
    let path = args.input.as_deref().filter(|path| path.as_os_str() != "-");
    if let Some(path) = path
        && same_file(&args.volume.image, path)
    {
        return Err(Error::usage(format!("{}: the volume would be written into itself", path.display()))
            .with_remedy("another file"));
    }
    let mut input = open_input(path)?;
    let mapping = volume::open(&args.volume, Access { read_only: false, allow_discards: false })?;
    let (image, size) = (args.volume.image.display(), mapping.size());
    let Some(room) = size.checked_sub(args.offset) else {
        return Err(Error::usage(format!("{image}: byte {} lies beyond the volume", args.offset))
            .with_remedy(format!("an offset within its {} ({size} bytes)", size::show(size))));
    };
    // After the passphrase, whose line may have come from the same descriptor.
    let length = length(&mut input);
    if let Some(length) = length.filter(|&length| length > room) {
        return Err(Error::usage(format!("{image}: an input of {length} bytes, and room for {room}"))
            .with_remedy("a shorter input, or a larger volume; nothing was written"));
    }
    let mut progress = Progress::new("writing", length, quiet);
    transfer::write(&mapping, args.offset, &mut input, &mut progress)?;
    Ok(())
}

fn open_input(path: Option<&Path>) -> Result<File> {
    match path {
        Some(path) => File::open(path).map_err(|e| Error::io(path, "cannot open", e)),
        // Past the standard library's buffer: chunks are large, and what a passphrase left unread must be seen.
        None => {
            let fd = stdin().as_fd().try_clone_to_owned();
            Ok(fd.map_err(|e| Error::io(Path::new("stdin"), "cannot be used", e))?.into())
        }
    }
}

/// How much is left to read, where that can be known: not from a pipe.
fn length(input: &mut File) -> Option<u64> {
    let kind = input.metadata().ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let position = input.stream_position().ok()?;
    let size = ReadAt::size(input).ok()?;
    input.seek(std::io::SeekFrom::Start(position)).ok()?;
    Some(size.saturating_sub(position))
}
