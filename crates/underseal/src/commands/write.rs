//! `underseal write`.

use std::fs::File;
use std::io::{Seek, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use underseal_datapath::Mapping;
use underseal_volume::ReadAt;

use super::same_file;
use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::integrity;
use crate::progress::Progress;
use crate::size;
use crate::transfer;
use crate::volume::{self, Access, Opened};

/// Copies plain bytes into a volume, without a server, and flushes it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WriteArgs {
    /// Where to begin in the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// The file to read; stdin by default or for "-"
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

pub(super) fn run(args: &WriteArgs, quiet: bool) -> Result<()> {
    let image = &args.volume.image;
    let input = Input::open(args.input.as_deref(), [&**image])?;
    let access = Access { read_only: false, allow_discards: false };
    let Opened { mapping, layers, inside: _inside, locks: _locks, .. } = volume::open(&args.volume, access)?;
    let mapping = Arc::new(mapping);
    input.give(&mapping, image, args.offset, quiet)?;
    integrity::close(&layers)
}

/// The source of plain bytes: an open file, or stdin.
pub(super) struct Input(File);

impl Input {
    /// Opens the source, and refuses the volume's own file. Fails with `Usage`, or with `Failed`
    /// when it cannot be opened.
    pub(super) fn open<'v>(input: Option<&Path>, volume: impl IntoIterator<Item = &'v Path>) -> Result<Self> {
        let path = input.filter(|path| path.as_os_str() != "-");
        if let Some(path) = path
            && volume.into_iter().any(|p| same_file(p, path))
        {
            let what = format!("{}: the volume would be written into itself", path.display());
            return Err(Error::usage(what).with_remedy("another file"));
        }
        open_input(path).map(Self)
    }

    /// Copies the source to the volume `name`, from `offset` on. Fails with `Usage`, before
    /// anything is written, when the source is known to be too long; with the volume's or the
    /// file's errors.
    pub(super) fn give(
        mut self,
        mapping: &Arc<Mapping>,
        name: &Path,
        offset: u64,
        quiet: bool,
    ) -> Result<()> {
        let (name, size) = (name.display(), mapping.size());
        let Some(room) = size.checked_sub(offset) else {
            return Err(Error::usage(format!("{name}: byte {offset} lies beyond the volume"))
                .with_remedy(format!("an offset within its {} ({size} bytes)", size::show(size))));
        };
        // The length is taken after the passphrase, whose line may have come from the same
        // descriptor.
        let length = length(&mut self.0);
        if let Some(length) = length.filter(|&length| length > room) {
            return Err(Error::usage(format!("{name}: an input of {length} bytes, and room for {room}"))
                .with_remedy("a shorter input, or a larger volume; nothing was written"));
        }
        let mut progress = Progress::new("writing", length, quiet);
        transfer::write(mapping, offset, &mut self.0, &mut progress)?;
        Ok(())
    }
}

fn open_input(path: Option<&Path>) -> Result<File> {
    match path {
        Some(path) => File::open(path).map_err(|e| Error::io(path, "cannot open", e)),
        // The standard library's buffer is bypassed: chunks are large, and the bytes after the
        // passphrase must not be lost.
        None => {
            let fd = stdin().as_fd().try_clone_to_owned();
            Ok(fd.map_err(|e| Error::io(Path::new("stdin"), "cannot be used", e))?.into())
        }
    }
}

/// Returns the remaining length, where it is known: not for a pipe.
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

const EXAMPLES: &str = "\
Examples:
  underseal write disk.img -i filesystem.ext4
  tar c photos | underseal write disk.img --passphrase-file pass.txt --offset 1G
  cat pass.txt data | underseal write disk.img --passphrase-fd 0";
