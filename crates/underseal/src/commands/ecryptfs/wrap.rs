//! `underseal ecryptfs wrap` and `unwrap`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use underseal_cipher::Key;
use underseal_ecryptfs::wrapped;

use super::access::{NewPassphraseArgs, new_passphrase};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

/// Wraps a mount's passphrase with a login's, for ~/.ecryptfs/wrapped-passphrase
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs wrap wrapped-passphrase --passphrase-file mount --new-passphrase-file login")]
pub(crate) struct TreeWrapArgs {
    /// The file to make; it must not exist
    pub(crate) file: PathBuf,
    /// The passphrase to wrap is the first line of this file
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The passphrase to wrap is the first line from this open descriptor
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
    #[command(flatten)]
    pub(crate) new: NewPassphraseArgs,
    /// The older kind of file, with a fixed salt
    #[arg(long)]
    pub(crate) version_1: bool,
}

pub(super) fn wrap(args: &TreeWrapArgs) -> Result<()> {
    let passphrase = secret(args.passphrase_file.as_deref(), args.passphrase_fd, "Passphrase to wrap: ")?;
    let wrapping = new_passphrase(&args.new, "Passphrase that opens it: ")?;
    let bytes = match args.version_1 {
        true => wrapped::wrap_version_1(&passphrase, wrapping.as_bytes())?,
        false => wrapped::wrap(&passphrase, wrapping.as_bytes())?,
    };
    let file = File::options().write(true).create_new(true).mode(0o600).open(&args.file);
    let mut file = file.map_err(|e| Error::io(&args.file, "cannot be made", e))?;
    let written = file.write_all(&bytes).and_then(|()| file.sync_all()).and_then(|()| sync_above(&args.file));
    written.map_err(|e| {
        // After a failed sync the file may be in the page cache only. It is removed, so that the
        // next attempt makes a new file.
        underseal_volume::remove_new_file(&args.file, &file);
        Error::io(&args.file, "cannot write", e)
    })
}

/// Makes a file's name survive a power cut.
fn sync_above(path: &Path) -> std::io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

/// Shows the passphrase in a wrapped-passphrase file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs unwrap ~/.ecryptfs/wrapped-passphrase > /dev/shm/secret")]
pub(crate) struct TreeUnwrapArgs {
    /// The file
    pub(crate) file: PathBuf,
    /// The passphrase that opens it is the first line of this file
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The passphrase that opens it is the first line from this open descriptor
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
}

pub(super) fn unwrap(args: &TreeUnwrapArgs) -> Result<()> {
    let sealed = read(&args.file)?;
    let question = format!("Passphrase for {}: ", args.file.display());
    let wrapping = secret(args.passphrase_file.as_deref(), args.passphrase_fd, &question)?;
    let passphrase = wrapped::unwrap(&sealed, wrapping.as_bytes()).map_err(|e| e.in_file(&args.file))?;
    // The passphrase is written straight from locked memory: the buffer of stdout would keep it.
    let mut stdout = File::from(rustix::io::dup(rustix::stdio::stdout()).map_err(gone)?);
    stdout.write_all(passphrase.as_bytes()).and_then(|()| stdout.write_all(b"\n")).map_err(gone)
}

fn gone(e: impl Into<std::io::Error>) -> Error {
    Error::new(Exit::Failed, "cannot write to stdout").because(&e.into())
}

/// Reads a wrapped passphrase's file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The limit is one byte more, so that a longer file is noticed.
    let limit = wrapped::MAX_FILE as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    read.map_err(|e| Error::io(path, "cannot read", e))?;
    Ok(bytes)
}

fn secret(file: Option<&Path>, fd: Option<u32>, question: &str) -> Result<Key> {
    match (file, fd) {
        (Some(path), _) => first_line_of_file(path),
        (None, Some(number)) => first_line_of_descriptor(number),
        (None, None) => ask_hidden(question),
    }
}
