//! `underseal read`.

use std::fs::File;
use std::io::{IsTerminal, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::same_file;
use crate::cli::ReadArgs;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::size;
use crate::transfer;
use crate::volume::{self, Access};

pub(super) fn run(args: &ReadArgs, quiet: bool) -> Result<()> {
    if args.output.is_none() && stdout().is_terminal() {
        return Err(Error::usage("plain bytes would go to the terminal")
            .with_remedy("-o FILE, or -o - if that is meant"));
    }
    let file = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    if let Some(path) = file
        && [Some(&args.volume.image), args.volume.header.as_ref()]
            .into_iter()
            .flatten()
            .any(|p| same_file(p, path))
    {
        return Err(Error::usage(format!("{}: the volume itself would be overwritten", path.display()))
            .with_remedy("another file for its plain bytes"));
    }
    let mapping = volume::open(&args.volume, Access { read_only: true, allow_discards: false })?;
    let size = mapping.size();
    let end = match args.length {
        Some(length) => args.offset.checked_add(length),
        None => Some(size),
    };
    let Some(end) = end.filter(|&end| args.offset <= end && end <= size) else {
        return Err(Error::usage(format!(
            "{}: the range goes beyond the volume",
            args.volume.image.display()
        ))
        .with_remedy(format!("a range within its {} ({size} bytes)", size::show(size))));
    };
    // Only now: a wrong passphrase leaves an existing file alone.
    let mut output = open_output(file)?;
    let mut progress = Progress::new("reading", Some(end - args.offset), quiet);
    transfer::read(&mapping, args.offset..end, &mut output, &mut progress)
}

fn open_output(path: Option<&Path>) -> Result<File> {
    match path {
        Some(path) => {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            file.map_err(|e| Error::io(path, "cannot create", e))
        }
        // Past the standard library's buffer: chunks are large.
        None => {
            let fd = stdout().as_fd().try_clone_to_owned();
            Ok(fd.map_err(|e| Error::io(Path::new("stdout"), "cannot be used", e))?.into())
        }
    }
}
