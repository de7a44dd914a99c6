//! `underseal read`.

use std::fs::File;
use std::io::{self, IsTerminal, stdout};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use underseal_datapath::Mapping;
use underseal_device::open_again;

use super::check::Lost;
use super::same_file;
use crate::cli::{OnError, VolumeArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::loop_file::lock_as_image;
use crate::progress::Progress;
use crate::size;
use crate::transfer;
use crate::volume::{self, Access, Opened};

/// Copies a volume's plain bytes out, without a server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReadArgs {
    /// Where to begin in the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// How much to read; to the volume's end by default
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(crate) length: Option<u64>,
    /// The file to write, created for you alone; stdout by default, "-" for stdout even on a
    /// terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Authenticated volumes: at sectors whose tags do not match, stop, or give zeros and list them
    /// on stderr
    #[arg(long, value_name = "WAY", value_enum, default_value_t = OnError::Stop)]
    pub(crate) on_error: OnError,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

pub(super) fn run(args: &ReadArgs, quiet: bool) -> Result<()> {
    let volume = &args.volume;
    let lower = [&volume.image].into_iter().chain(&volume.header).map(PathBuf::as_path);
    let lower = lower.chain(volume.other_device.iter().map(Path::new));
    // Without its key the volume would be lost.
    let read = lower.chain(volume.secret.files()).chain(volume.volume_key_file.as_deref());
    let output = Output::plan(args.output.as_deref(), read)?;
    let access = Access { read_only: true, allow_discards: false };
    let Opened { mapping, locks: _locks, .. } = volume::open(volume, access)?;
    let mapping = Arc::new(mapping);
    let size = mapping.size();
    let end = match args.length {
        Some(length) => args.offset.checked_add(length),
        None => Some(size),
    };
    let Some(end) = end.filter(|&end| args.offset <= end && end <= size) else {
        return Err(Error::usage(format!("{}: the range goes beyond the volume", volume.image.display()))
            .with_remedy(format!("a range within its {} ({size} bytes)", size::show(size))));
    };
    output.take(&mapping, args.offset..end, args.on_error, quiet)
}

/// The destination of plain bytes: a file, or `None` for stdout.
pub(super) struct Output<'a>(Option<&'a Path>);

impl<'a> Output<'a> {
    /// Refuses a terminal, and the files that are read: the volume's own ones and those with its
    /// keys. Fails with `Usage`.
    pub(super) fn plan<'v>(
        output: Option<&'a Path>,
        read: impl IntoIterator<Item = &'v Path>,
    ) -> Result<Self> {
        if output.is_none() && stdout().is_terminal() {
            return Err(Error::usage("plain bytes would go to the terminal")
                .with_remedy("-o FILE, or -o - if that is meant"));
        }
        let file = output.filter(|path| path.as_os_str() != "-");
        if let Some(path) = file
            && read.into_iter().any(|read| same_file(read, path))
        {
            let what = format!("{}: the volume itself or its key would be overwritten", path.display());
            return Err(Error::usage(what).with_remedy("another file for its plain bytes"));
        }
        Ok(Self(file))
    }

    /// Copies a range of the volume, durably. The file is made or truncated only now: a wrong
    /// passphrase leaves it unchanged. Fails with the volume's or the file's error.
    pub(super) fn take(
        self,
        mapping: &Arc<Mapping>,
        range: Range<u64>,
        on_error: OnError,
        quiet: bool,
    ) -> Result<()> {
        let mut output = OutputFile::open(self.0)?;
        let mut progress = Progress::new("reading", Some(range.end - range.start), quiet);
        if on_error == OnError::Stop {
            transfer::read(mapping, range, &mut output.file, &mut progress)?;
            return output.end();
        }
        // The output may be stdout.
        let mut lost = Lost::new(|run| {
            eprintln!("underseal: bytes {} to {}: not as written: zeros", run.start, run.end);
            Ok(())
        });
        let read =
            transfer::salvage(mapping, range, &mut output.file, &mut progress, &mut |run| lost.add(run));
        drop(progress);
        let bytes = lost.end()?;
        read?;
        output.end()?;
        match bytes {
            0 => Ok(()),
            bytes => Err(Error::new(
                Exit::Failed,
                format!("{bytes} bytes are not as they were written: zeros stand for them"),
            )),
        }
    }
}

/// A file for plain bytes, locked as an image is: it may be another volume's, open or about to be.
struct OutputFile<'a> {
    file: File,
    path: Option<&'a Path>,
    /// The file below a loop device, for its lock.
    _below: Option<File>,
}

impl<'a> OutputFile<'a> {
    /// Fails with `InUse` where a program has the file open as an image, or the kernel has mounted
    /// the disk, which is unchanged then.
    fn open(path: Option<&'a Path>) -> Result<Self> {
        let Some(path) = path else {
            // Chunks are large, so the standard library's buffer is bypassed.
            let fd = stdout().as_fd().try_clone_to_owned();
            let file = fd.map_err(|e| Error::io(Path::new("stdout"), "cannot be used", e))?.into();
            return Ok(Self { file, path: None, _below: None });
        };
        let failed = |e| Error::io(path, "cannot create", e);
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = file.map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let is_disk = about.file_type().is_block_device();
        if is_disk {
            file = open_again(&file, libc::O_EXCL).map_err(|e| match e.kind() {
                io::ErrorKind::ResourceBusy => {
                    Error::new(Exit::InUse, format!("{}: is in use", path.display())).because(&e)
                }
                _ => failed(e),
            })?;
        }
        // Pipes, terminals and /dev/null are shared.
        let below = if is_disk || about.is_file() { lock_as_image(&file, path)? } else { None };
        if about.is_file() {
            file.set_len(0).map_err(failed)?;
        }
        Ok(Self { file, path: Some(path), _below: below })
    }

    /// Puts the bytes on stable storage, as far as the file has any.
    fn end(&self) -> Result<()> {
        let Some(path) = self.path else { return Ok(()) };
        match self.file.sync_all() {
            Err(e) if e.kind() != io::ErrorKind::InvalidInput => Err(Error::io(path, "cannot write", e)),
            _ => Ok(()),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  underseal read disk.img -o plain.img
  underseal read disk.img --length 1M --passphrase-file pass.txt | file -
  underseal read old.img --type plain --key-file old.key -o plain.img";
